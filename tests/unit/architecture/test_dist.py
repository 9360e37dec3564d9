"""What is packed is what the packages are."""

from __future__ import annotations

import pathlib
import tomllib

from tools.check_dist import ROOT, compare, packaged


def test_a_wheel_must_hold_every_package_and_nothing_else() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = {pathlib.PurePath(each).name for each in built["packages"]}
    assert names == {each.parent.name for each in (ROOT / "src").glob("*/__init__.py")}
    files = {f"{name}/__init__.py" for name in names}
    wanted = packaged({*(f"src/{each}" for each in files), "docs/gpu.md", "README.md"})
    assert compare("wheel", files, wanted) == []
    assert compare("wheel", {"stray.py"}, wanted) == [
        *(f"wheel lacks {each}" for each in sorted(files)),
        "wheel holds stray.py, which git does not track",
    ]
