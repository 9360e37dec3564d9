"""What a program may load before it computes: counted in modules, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COMPUTING = {"torch", "transformers", "triton", "numpy", "sympy", "safetensors"}
SERVING = {"litestar", "uvicorn", "prometheus_client", "opentelemetry", "msgspec", "jinja2", "tokenizers"}
ASKING = {"rich", "structlog", "httpx", "asyncio", "huggingface_hub"}


def loaded_by(program: str) -> set[str]:
    """The top-level packages that a program has loaded at its end."""
    watched = (
        f"import json, sys\n{program}\nprint(json.dumps([name for name in sys.modules if '.' not in name]))"
    )
    done = subprocess.run([sys.executable, "-c", watched], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


RENDER = """
from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.compose.bootstrap import assemble_text
text = assemble_text(str(model_folder()))
ids = text.template.render([{"role": "user", "content": "Hi"}])
assert "Hi" in text.tokenizer.decode(ids)
"""


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import nanoserve.entrypoints.cli.main", COMPUTING | SERVING | ASKING),
        ("import nanoserve.entrypoints.client.top", COMPUTING | SERVING - {"msgspec", "prometheus_client"}),
        ("import nanoserve.entrypoints.bench.serving.command", COMPUTING),
        (
            "import nanoserve.entrypoints.server.serve",
            COMPUTING | {"opentelemetry", "httpx", "huggingface_hub"},
        ),
        (
            "import nanoserve.entrypoints.compose.bootstrap",
            COMPUTING | {"asyncio", "rich", "httpx", "litestar"},
        ),
        (RENDER, COMPUTING | {"asyncio", "rich", "httpx", "litestar", "huggingface_hub"}),
    ],
    ids=["command line", "top", "bench serve", "server", "composition", "text to ids"],
)
def test_nothing_is_loaded_before_it_is_needed(program: str, absent: set[str]) -> None:
    assert loaded_by(program) & absent == set()
