"""The `nanoserve` command, also as `python -m nanoserve`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, in which a file may have any module's name

import io
import os
import signal

from nanoserve.entrypoints.compose.interrupts import interrupt


def main() -> None:
    """Run the command line and exit; Ctrl-C is one line on standard error from here on."""
    signal.signal(signal.SIGINT, interrupt)
    _replace_closed_streams()
    try:
        from nanoserve.entrypoints.compose.early import begin_engine, take_engine  # noqa: PLC0415 - Ctrl-C is taken care of first

        begin_engine(sys.argv[1:])
        from nanoserve.entrypoints.cli.main import main as run  # noqa: PLC0415 - meanwhile
    except ModuleNotFoundError as error:
        missing = f"the package {error.name} is not installed"
        sys.stderr.write(f"nanoserve: {missing}; install nanoserve with all that it needs: pip install .\n")
        sys.exit(2)
    try:
        run()
    finally:
        take_engine()


def _replace_closed_streams() -> None:
    """Open the standard streams that this process was started without, for itself and its children.

    The next file or socket would else have such a stream's number, and take what is printed. Input is empty, and errors
    go nowhere; to write to standard output is an error, so that no answer is lost without a word.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY), True)
            raw = io.BufferedReader(io.FileIO(number)) if name == "stdin" else io.FileIO(number, "w")
            setattr(sys, name, io.TextIOWrapper(raw, write_through=True))


if __name__ == "__main__":
    main()
