"""KV blocks in files: written and read by threads, checked whenever they are read, and found again by a later start."""
