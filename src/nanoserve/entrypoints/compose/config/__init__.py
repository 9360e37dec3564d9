"""Every setting: what it is called, where its value came from, and what it may be."""
