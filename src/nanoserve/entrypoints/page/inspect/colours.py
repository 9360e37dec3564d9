"""Colours and signs of the picture, told apart also by those who confuse red with green."""

from __future__ import annotations

from typing import Final

from nanoserve.entrypoints.page.inspect.rows import Doing

DOING: Final = {
    Doing.QUEUED: "#D9D9D9",
    Doing.IDLE: "#F7EBC0",
    Doing.DECODE: "#56B4E9",
    Doing.PREFILL: "#E69F00",
    Doing.PREEMPTED: "#B2182B",
}
MARKS: Final = {
    "prefix hit": ("D", "#009E73", "prefix hit"),
    "preempted": ("v", "black", "preempted here"),
    "stop": ("o", "black", "ended: stop"),
    "length": ("|", "black", "ended: length"),
    "abort": ("x", "black", "ended: abort"),
    "timeout": ("+", "black", "ended: timeout"),
    "error": ("X", "#B2182B", "ended: error"),
}
"""By what happened: the marker, its colour and its name in the legend."""
BLOCKS: Final = [
    "#FFFFFF",  # free
    "#E3E3E3",  # free, cached
    "#332288",  # owners: from Paul Tol's muted colours
    "#999933",
    "#44AA99",
    "#DDCC77",
    "#CC6677",
    "#AA4499",
    "#117733",
    "#882255",
    "#000000",  # shared
]
"""By what a cell of the block map holds."""
