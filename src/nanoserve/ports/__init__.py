"""The values that cross the borders between layers, and the protocols that adapters fulfil."""
