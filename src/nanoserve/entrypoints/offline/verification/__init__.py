"""Compares a model as nanoserve computes it with a reference: plain numbers on both sides."""
