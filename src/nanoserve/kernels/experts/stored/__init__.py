"""Experts whose weights are kept as a checkpoint stores them."""
