"""Attention of encoders, which reads the tokens on both sides of each and keeps nothing."""
