"""Every setting: its name, the origin of its value, and its kind."""
