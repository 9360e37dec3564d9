"""Lets the server start an engine with `python -m nanoserve.entrypoints.engine_host FILE_DESCRIPTOR`."""

import sys

from nanoserve.entrypoints.engine_host.main import main

sys.exit(main())
