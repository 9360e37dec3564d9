"""Kernels around the layer of a head that drafts (EAGLE-3, Li et al.

2025): its inputs, its guessed token, and the state that it continues from. All of it stays on the device, so that one graph makes
drafts, computes them and accepts them.
"""
