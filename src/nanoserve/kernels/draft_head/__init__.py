"""Kernels around the layer of a head that drafts (EAGLE-3, Li et al. 2025): what it reads, the token that it guesses, and the state that it continues from.

All of it stays on the device, so that a step makes drafts, computes them and learns what they were worth in one graph.
"""
