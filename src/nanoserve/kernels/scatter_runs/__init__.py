"""Write many short runs of integers into one large tensor: one upload and one launch, however many places change.

The host packs `(destination, values)` runs into one (pinned) buffer, copies its used part to the device in one go,
and the kernel puts every run where it belongs. An upload of `n` segments is laid out as

    n descriptors of three integers (destination, length, source), then the values of all runs,

where `source` counts from the start of the upload. Packing cuts a run of more than `SEGMENT` values into segments, so
each program of the kernel writes one segment and the grid follows from `n` alone.
"""
