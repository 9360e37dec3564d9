"""Ranks of a benchmark: this program once for each GPU, which meet over the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch

from nanoserve.adapters.pytorch.parallel.gloo import LOOPBACK, GlooRanks, open_listener
from nanoserve.entrypoints.compose.group import own_gpu


def run_ranks(module: str, ranks: int) -> int:
    """Run a module with this program's arguments on each of the first GPUs it sees, its own coming first, with `--rank` and `--port`; the worst exit code."""
    listener, port = open_listener()
    listener.close()
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    processes = [
        subprocess.Popen([*command, f"--rank={rank}", f"--port={port}"], env=os.environ | own_gpu(rank))
        for rank in range(ranks)
    ]
    return max(each.wait() for each in processes)


def meet(rank: int, size: int, port: int) -> GlooRanks:
    """The other ranks, once all are here."""
    ranks = GlooRanks(rank, size)
    ranks.meet(port, socket.create_server((LOOPBACK, port)) if rank == 0 else None)
    return ranks


def need_gpu() -> None:
    """End the program with one line where torch finds no GPU."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU, and torch finds none")
