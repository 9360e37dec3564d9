"""Compare what an sdist and a wheel hold with what git tracks; prints a line for each difference.

python tools/check_dist.py dist
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
    """Check the one sdist and the one wheel of the folder."""
    folder = pathlib.Path(sys.argv[1])
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    tracked = set(subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines())  # noqa: S607 - git, from the path
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "sdist"
    ]["include"]
    source = {each for each in tracked if each.split("/")[0] in included} | {"pyproject.toml", ".gitignore"}
    with zipfile.ZipFile(wheel) as opened:
        found = {each for each in opened.namelist() if ".dist-info/" not in each}
    with tarfile.open(sdist) as opened:
        files = {each.name.partition("/")[2] for each in opened.getmembers() if each.isfile()}
    differences = [
        *compare(wheel.name, found, packaged(tracked)),
        *compare(sdist.name, files - {"PKG-INFO"}, source),
    ]
    sys.exit("\n".join(differences) or None)


def packaged(tracked: set[str]) -> set[str]:
    """Those of the tracked files that a wheel must hold, by their place in it."""
    return {each.removeprefix("src/") for each in tracked if each.startswith("src/")}


def compare(name: str, found: set[str], wanted: set[str]) -> list[str]:
    """Missing and superfluous files, in words."""
    return [f"{name} lacks {each}" for each in sorted(wanted - found)] + [
        f"{name} holds {each}, which git does not track" for each in sorted(found - wanted)
    ]


if __name__ == "__main__":
    main()
