"""A cluster under a virtual clock: engines as they are shipped, over runners that only count time."""
