"""For every test: no settings of its caller, property tests of three depths, and Triton's interpreter where there is no GPU.

The folders are the tiers; CONTRIBUTING.md says what is where. `--matrix` is for the long cases of `tests/interpreter`, which a GPU
always computes.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import importlib.util
import inspect
import os
import ssl
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.patience import PATIENCE
from tests.triton_interpreter import interpret

for name in [each for each in os.environ if each.startswith("NANOSERVE_")]:
    del os.environ[name]

# Every client of HTTP would read the certificates of a hundred authorities for itself, though no test speaks TLS.
setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))  # noqa: B010 - a function has no other type

settings.register_profile(
    "quick",
    derandomize=True,
    deadline=None,
    max_examples=50,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", settings.get_profile("quick"), max_examples=200, stateful_step_count=40)
settings.register_profile("deep", settings.get_profile("ci"), derandomize=False, max_examples=3000)
settings.load_profile("quick")  # or what --hypothesis-profile says


def _has_gpu() -> bool:
    """Whether torch sees one; torch takes seconds to import, and without a driver it need not be asked."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch  # noqa: PLC0415 - takes seconds

    return torch.cuda.is_available()


# The choice comes before anything imports Triton, which reads it only then.
if importlib.util.find_spec("triton") is not None and not _has_gpu():
    interpret()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix", action="store_true", help="every shape of every kernel in Triton's interpreter"
    )
    parser.addoption("--require-browser", action="store_true", help="fail where there is no Chromium")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported lives to the end: garbage need not be looked for in it, neither meanwhile nor by a test."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An `async def` test runs in an event loop of its own; one that hangs fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 2 * PATIENCE))
    return True


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """No log set up by one test is left for the next."""
    yield
    if "structlog" in sys.modules:
        sys.modules["structlog"].reset_defaults()


@pytest.fixture(scope="module")
def plain_products() -> Iterator[None]:
    """Models on a CPU keep their weights as they come, as those on a GPU do."""
    from nanoserve.adapters.pytorch.linear import onednn  # noqa: PLC0415 - torch takes seconds to import

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "available", lambda _: False)
        yield
