"""Print the versions installed in this environment as a constraints file, so that installs can be repeated.

    python -m tools.write_constraints > constraints.txt

Local version labels (a CPU or CUDA build of torch) and packages that exist for one platform only are left out.
"""

from __future__ import annotations

import importlib.metadata
import re

SKIPPED = re.compile(r"^(nanoserve|pip|setuptools|wheel|nvidia-.*|cuda-.*)$")

UNTESTED = {"ray": "2.60.0"}
"""The version of an extra that the tests do without: `python -m tools.ray_check` passed with it."""


def constraints() -> list[str]:
    """One `name==version` line per installed distribution, sorted."""
    pairs = UNTESTED | {
        distribution.metadata["Name"].lower(): distribution.version.split("+")[0]
        for distribution in importlib.metadata.distributions()
    }
    return [f"{name}=={version}" for name, version in sorted(pairs.items()) if not SKIPPED.match(name)]


def main() -> None:
    """Print the file."""
    print("# Versions that the test suite last passed with; `make lock` rewrites this file.")
    print("\n".join(constraints()))


if __name__ == "__main__":
    main()
