"""Tensor parallelism: what part of a model each rank has, and how ranks add up what they compute."""
