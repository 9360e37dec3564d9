"""Shells complete commands, options and words after `nanoserve completion`: real shells, with keys typed into them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.process.command import environment
from tests.process.terminal import terminal

PATH = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
}
READY = {
    "bash": 'eval "$(nanoserve completion bash)"; echo rea""dy\r',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(nanoserve completion zsh)"; echo rea""dy\r',
}
TYPED = {
    "nanoserve ver\t": "nanoserve verify ",
    "nanoserve serve --tensor-p\t": "--tensor-parallel-size ",
    "nanoserve serve --dtype bfl\t": "--dtype bfloat16 ",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_what_was_begun(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    variables = {"PATH": PATH, "PS1": "% ", "HOME": "/nonexistent"}
    with terminal(command=SHELLS[shell], extra=variables) as screen:
        screen.type(READY[shell])
        place = screen.wait_for("ready\n")
        for keys, completed in TYPED.items():
            screen.type(keys)
            place = screen.wait_for(completed, after=place)
            screen.type("\x15")
        screen.type("exit\r")


def test_fish_completes_what_was_begun(tmp_path: pathlib.Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    for keys, completed in TYPED.items():
        script = f"nanoserve completion fish | source; complete --do-complete '{keys.strip()}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            capture_output=True,
            text=True,
            env=environment({"PATH": PATH, "HOME": str(tmp_path)}),
            check=True,
        )
        assert done.stdout.split()[0] == completed.split()[-1]
