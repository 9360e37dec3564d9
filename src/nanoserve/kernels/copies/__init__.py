"""Copies within a device's memory: pages to pages, vectors of tokens, and the host's writes to many places at once.

| function     | what it copies                                                                                |
|--------------|-----------------------------------------------------------------------------------------------|
| copy_pages   | contents of pages, blocks or states, within their pools, in all layers at once                  |
| embed_tokens | the vectors of tokens, straight from the tokens that rows keep on the device                    |
| scatter_runs | many short runs of integers into one large tensor, with one upload and one launch               |

The host packs `(destination, values)` runs into one (pinned) buffer, and copies its used part to the device in one go. An upload of
`n` segments is laid out as

    n descriptors of three integers (destination, length, source), then the values of all runs,

where `source` counts from the start of the upload. Packing cuts a run of more than `SEGMENT` values into segments, so
each program of the kernel writes one segment and the grid follows from `n` alone.
"""

from nanoserve.kernels.copies.cpu import copy_pages

__all__ = ["copy_pages"]
