"""Contents of pages, blocks or states, carried over within their pools, in all layers at once."""

from nanoserve.kernels.copy_pages.cpu import copy_pages

__all__ = ["copy_pages"]
