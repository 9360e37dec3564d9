"""Sums over the GPUs of one machine: rows that lie in the memory of each, read where they are."""
