"""A router: one address in front of several servers of one model."""
