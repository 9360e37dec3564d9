"""The program of an engine's process, which loads torch's libraries while it imports: `python -m nanoserve.entrypoints.compose.engine_host_program FILE_DESCRIPTOR`."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path

from nanoserve.entrypoints.compose.process import prepare_process


def load_torch() -> None:
    """Load torch's libraries; whoever imports torch finds them loaded.

    Other threads run meanwhile: Python holds its lock where it loads a library, but not where it calls a function of C. Where
    LD_LIBRARY_PATH names other libraries, torch chooses between them when it is imported.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or "LD_LIBRARY_PATH" in os.environ:
        return
    folder, load = Path(torch.origin).parent / "lib", ctypes.CDLL(None).dlopen
    load.restype = ctypes.c_void_p
    if load(bytes(folder / "libtorch_global_deps.so"), os.RTLD_NOW | os.RTLD_GLOBAL):
        load(bytes(folder / "libtorch.so"), os.RTLD_NOW)


if __name__ == "__main__":
    prepare_process()  # before libgomp is loaded
    threading.Thread(target=load_torch, daemon=True).start()
    from nanoserve.entrypoints.compose.engine_host import main

    sys.exit(main())
