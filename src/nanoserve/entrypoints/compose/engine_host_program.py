"""The program of an engine's process, which loads torch's libraries while it imports: `python -m nanoserve.entrypoints.compose.engine_host_program FILE_DESCRIPTOR`."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path

# Their own libraries would wait until those of torch are loaded.
FIRST = ("jinja2", "llguidance", "msgspec", "psutil", "queue", "structlog", "tokenizers")


def load_torch() -> None:
    """Load torch's libraries; whoever imports torch finds them loaded. Where LD_LIBRARY_PATH names others, torch chooses when it is imported. Python holds its lock where it loads a library, but not where it calls a function of C."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or "LD_LIBRARY_PATH" in os.environ:
        return
    folder, load = Path(torch.origin).parent / "lib", ctypes.CDLL(None).dlopen
    load.restype = ctypes.c_void_p
    if load(bytes(folder / "libtorch_global_deps.so"), os.RTLD_NOW | os.RTLD_GLOBAL):
        load(bytes(folder / "libtorch.so"), os.RTLD_NOW)


if __name__ == "__main__":  # whoever starts it has prepared its environment: libgomp is loaded, too
    list(map(importlib.import_module, FIRST))
    threading.Thread(target=load_torch).start()  # no daemon: to end while libraries load may crash
    from nanoserve.entrypoints.compose.engine_host import main

    sys.exit(main())
