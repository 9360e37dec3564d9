"""lm-evaluation-harness scores the model in the box through a server as it does through transformers."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.process.clients.access import KEY
from tests.process.command import environment
from tests.process.server_process import ServerProcess

HERE = pathlib.Path(__file__).parent
FACTS, CONTINUATIONS = "nanoserve_facts", "nanoserve_continuations"
REFERENCES = {
    "ids": "transformers",
    "texts": "transformers",
    "the server's tokenizer": "transformers without bos",
}


@pytest.fixture(scope="module")
def runs(server: ServerProcess, folder: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return evaluated(server, folder, tmp_path_factory.mktemp("hub"))


def evaluated(server: ServerProcess, folder: str, cache: pathlib.Path) -> dict[str, Any]:
    """Every run of `evaluation.py`, in one process of its own that finds nothing to download."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    caches = {"HF_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, str(HERE / "evaluation.py"), server.url, KEY, folder],
        cwd=HERE / "tasks",
        env=environment(offline | caches | {"OPENAI_API_KEY": KEY}),
        capture_output=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_references_tell_something(runs: dict[str, Any]) -> None:
    for name in set(REFERENCES.values()):
        scores = runs[name]["scores"]
        assert 0 < scores[FACTS]["acc,none"] < 1
    with_bos, without = (runs[name] for name in ("transformers", "transformers without bos"))
    assert 0 < with_bos["scores"][CONTINUATIONS]["exact_match,none"] < 1
    assert with_bos["scores"] != without["scores"]


@pytest.mark.parametrize(("run", "reference"), REFERENCES.items())
def test_scores_endings_and_texts_are_equal(runs: dict[str, Any], run: str, reference: str) -> None:
    ours, theirs = runs[run], runs[reference]
    assert ours["scores"] == theirs["scores"]
    assert ours["answers"][CONTINUATIONS] == theirs["answers"][CONTINUATIONS]
    assert len(ours["answers"][FACTS]) == len(theirs["answers"][FACTS]) == 7
    for answered, expected in zip(ours["answers"][FACTS], theirs["answers"][FACTS], strict=True):
        assert [each[0][0] for each in answered] == pytest.approx([each[0][0] for each in expected], abs=1e-2)
        assert [each[0][1] for each in answered] == [each[0][1] for each in expected]
