"""What the processes of `nanoserve serve` have loaded once they are ready, and `nanoserve generate` at its end, counted in modules."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HTTP = """
import json, os, signal, sys
from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.command_settings import LogSettings
from nanoserve.entrypoints.compose.config.serve_settings import ServeSettings
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.server.serve import serve
from nanoserve.entrypoints.server.serving import Serving
from tests.process.engine_swap import swapped

def announce(started):
    print(json.dumps(list(sys.modules)))
    os.kill(os.getpid(), signal.SIGTERM)

model = EngineSettings(model=str(model_folder()))
with swapped("tests.process.scripted_engine"):
    serve(Serving(engine=model, serve=ServeSettings(listen=ListenSettings(port=0)), log=LogSettings()), announce)
"""
GENERATE = """
import json, sys
from nanoserve.entrypoints.cli.main import run_command

assert run_command(["generate", "Once", "--max-tokens", "2", "--device", "cpu"]) == 0
print(json.dumps(list(sys.modules)))
"""
ENGINE = """
import json, sys
from nanoserve.adapters.embedded import model_folder
from nanoserve.adapters.engine_process.host.process import warm_up
from nanoserve.entrypoints.compose import engine_host
from nanoserve.entrypoints.compose.bootstrap import assemble
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings

warm_up(assemble(EngineSettings(model=str(model_folder()))).engine)
print(json.dumps(list(sys.modules)))
"""
HOST = (
    """
import json, sys
from nanoserve.entrypoints.compose.bootstrap import preload

preload()
import torch
import inspect
inspect.getmodule(inspect.currentframe())  # looks through all modules
"""
    + ENGINE
    + """
from torch._meta_registrations import meta_index_Tensor
row = torch.zeros(4, device="meta")
assert row[torch.zeros(3, dtype=torch.int64, device="meta")].shape == (3,)
assert torch._meta_registrations.meta_index_Tensor is meta_index_Tensor
assert "torch._decomp" in sys.modules
"""
)
UNREAD = {
    *("torch._decomp", "torch._refs", "torch._dynamo"),
    *("transformers", "sympy", "litestar", "httpx", "huggingface_hub"),
}


@pytest.mark.parametrize(
    ("program", "present", "absent"),
    [
        (
            HTTP,
            {"litestar", "tokenizers"},
            {
                "torch",
                "transformers",
                "triton",
                "numpy",
                "sympy",
                "httpx",
                "huggingface_hub",
                "nanoserve.domain.engine",
            },
        ),
        (GENERATE, {"torch"}, {*UNREAD, "triton"}),
        (HOST, {"torch", "torch._meta_registrations"}, UNREAD),
    ],
    ids=["HTTP", "generate", "prepared engine"],
)
def test_a_process_loads_only_what_it_uses(program: str, present: set[str], absent: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    (listed,) = (line for line in done.stdout.splitlines() if line.startswith('["'))
    modules = set(json.loads(listed))
    assert modules >= present
    assert modules & absent == set()
