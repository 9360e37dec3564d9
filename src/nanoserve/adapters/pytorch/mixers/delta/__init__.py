"""Gated delta nets: a state of constant size, made of all earlier tokens."""
