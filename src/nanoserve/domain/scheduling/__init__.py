"""The scheduler: what the next step computes."""
