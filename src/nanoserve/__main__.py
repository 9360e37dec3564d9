"""The `nanoserve` command, also as `python -m nanoserve`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the working directory, in which a file may have any module's name

import signal

from nanoserve.entrypoints.compose.interrupts import interrupt


def main() -> None:
    """Run the command line and exit; Ctrl-C is one line on standard error from here on."""
    signal.signal(signal.SIGINT, interrupt)
    try:
        from nanoserve.entrypoints.cli.main import main as run  # noqa: PLC0415 - Ctrl-C is taken care of first
    except ModuleNotFoundError as error:
        missing = f"the package {error.name} is not installed"
        sys.stderr.write(f"nanoserve: {missing}; install nanoserve with all that it needs: pip install .\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
