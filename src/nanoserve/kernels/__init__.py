"""One folder per operation: the float32 truth in `reference.py`, fast implementations beside it."""
