"""Tensor parallelism: each rank's part of a model, and the sums over ranks."""
