"""The walls of the hexagon, checked by machine."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import typing
from collections.abc import Iterator

from nanoserve.ports.layer_spec import Mixer
from nanoserve.ports.model_spec import CacheKind

ROOT = pathlib.Path(__file__).parents[3]
KERNEL_FILES = {
    "__init__",
    "reference",
    "cpu",
    "triton",
    "triton_choice",
    "triton_copies",
    "triton_gated",
    "triton_tiles",
    "tuning_tiles",
    "tuning_table",
    "launch",
    "tuning",
    "cases",
}

READING_PATH = 2300
"""Lines at most of all files that it takes to understand a step. It may only fall."""
MUST_BE_READ = {
    "scheduler",
    "steps",
    "cache",
    "laws",
    "runner",
    "decoding",
    "gpu_step",
    "gpu",
    "drawing",
    "linear_ops",
}

IMPORT_EVERYTHING_PURE = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "triton", "transformers", "numpy"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import nanoserve.domain, nanoserve.ports
for package in (nanoserve.domain, nanoserve.ports):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
heavy = {"torch", "triton", "litestar", "transformers", "numpy", "asyncio"} & set(sys.modules)
print(len([name for name in sys.modules if name.startswith("nanoserve.")]), sorted(heavy))
"""


def test_import_contracts_hold() -> None:
    linter = pathlib.Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_domain_and_ports_import_where_torch_is_not_installed() -> None:
    command = [sys.executable, "-c", IMPORT_EVERYTHING_PURE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, heavy = done.stdout.split(maxsplit=1)
    assert int(count) > 25
    assert heavy.strip() == "[]"


def test_the_readers_path_is_the_engine_as_shipped_and_stays_short() -> None:
    readme = (ROOT / "README.md").read_text()
    table = readme.partition("## Read it")[2].partition("Then [the architecture]")[0]
    path = re.findall(r"\]\((src/[\w/.]+)\)", table)
    assert {pathlib.Path(each).stem for each in path} >= MUST_BE_READ
    assert "src/nanoserve/adapters/pytorch/cuda/runner.py" in path
    assert re.findall(r"fewer than ([\d,]+) lines", table) == [f"{READING_PATH:,}"]
    lines = sum(len((ROOT / each).read_text().splitlines()) for each in path)
    assert READING_PATH - 150 < lines < READING_PATH


def test_the_cache_knows_laws_and_no_kind_of_cache_group() -> None:
    tree = ast.parse((ROOT / "src" / "nanoserve" / "domain" / "kv" / "cache.py").read_text())
    names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    assert "law_of" in names
    assert not names & {kind.__name__ for kind in typing.get_args(CacheKind)}


def test_the_pytorch_adapter_knows_kinds_of_mixers_and_no_mixer() -> None:
    """What is special about one is said in its folder; pages of models choose one, and the table of kinds lists all."""
    adapter = ROOT / "src" / "nanoserve" / "adapters" / "pytorch"
    rooms = [page for page in (adapter / "mixers").glob("*/*.py") if page.name != "__init__.py"]
    assert {"kind.py", "part.py", "weights.py", "gpu.py", "checks.py"} == {page.name for page in rooms}
    defined = {each.name for page in rooms for each in classes_of(page)}
    own = {each.__name__ for each in typing.get_args(Mixer)} | defined
    assert {"Attention", "AttentionSpec", "GpuLatents", "DeltaKind"} <= own
    table = adapter / "mixers" / "__init__.py"
    chosen = {each for each in (adapter / "models").glob("*.py") if each.stem not in {"__init__", "decoder"}}
    for page in set(adapter.rglob("*.py")) - set(rooms) - chosen - {table}:
        words = set(re.findall(r"\w+", "\n".join(names_in(page))))
        assert not words & own, f"{page} names {words & own}"
        assert not words & {"paged_attention", "latent_attention", "delta_rule"}, (
            f"{page} launches for a mixer"
        )


def classes_of(page: pathlib.Path) -> list[ast.ClassDef]:
    return [each for each in ast.parse(page.read_text()).body if isinstance(each, ast.ClassDef)]


def names_in(page: pathlib.Path) -> Iterator[str]:
    """All that a page names, imports included and prose left out."""
    for each in ast.walk(ast.parse(page.read_text())):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.alias):
            yield each.name
        elif isinstance(each, ast.ImportFrom):
            yield each.module or ""


def test_no_kernel_folder_imports_another() -> None:
    """A wildcard contract cannot say it: modules beside the folders are shared by them."""
    folders = {page.parent.name for page in (ROOT / "src/nanoserve/kernels").glob("*/__init__.py")}
    for page in (ROOT / "src/nanoserve/kernels").glob("*/**/*.py"):
        own = page.relative_to(ROOT / "src/nanoserve/kernels").parts[0]
        imported = set(re.findall(r"nanoserve\.kernels\.(\w+)", page.read_text()))
        assert imported & folders <= {own, "device", "forms"}, page


def test_every_source_file_says_what_it_is_for_and_is_one_thing() -> None:
    for page in (ROOT / "src").rglob("*.py"):
        text = page.read_text()
        assert text.startswith('"""'), f"{page} does not say what it is for"
        assert len(text.splitlines()) <= 400, f"{page} is too long to be one thing"


def test_every_kernel_folder_has_the_same_file_names() -> None:
    folders = [page.parent for page in (ROOT / "src" / "nanoserve" / "kernels").glob("*/__init__.py")]
    assert len(folders) > 10
    for folder in folders:
        if folder.name in {"device", "forms"}:  # no operations, but what kernels of several call
            continue
        names = {page.stem for page in folder.glob("*.py")}
        assert {"__init__", "reference"} <= names <= KERNEL_FILES, folder
        assert ("triton" in names) == ("launch" in names) == ("cases" in names), folder
        assert names & {"cpu", "launch"}, f"nothing in {folder} serves"


def test_every_form_of_weights_has_the_same_file_names_and_knows_no_other() -> None:
    for folder in [page.parent for page in (ROOT / "src/nanoserve/kernels/forms").glob("*/__init__.py")]:
        assert {page.stem for page in folder.glob("*.py")} == {"__init__", "triton"}, folder
        for page in folder.glob("*.py"):
            imported = set(re.findall(r"nanoserve\.kernels\.(\w+(?:\.\w+)?)", page.read_text()))
            assert {each for each in imported if not each.startswith("device.")} <= {"forms.layout"}, page


def test_the_contracts_of_kernels_import_without_triton() -> None:
    refuse = 'import sys; sys.modules["triton"] = None; import importlib\n'
    folders = (ROOT / "src" / "nanoserve" / "kernels").glob("*/__init__.py")
    imports = "".join(
        f"importlib.import_module('nanoserve.kernels.{page.parent.name}')\n" for page in folders
    )
    done = subprocess.run(
        [sys.executable, "-c", refuse + imports], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_test_of_the_control_plane_reaches_for_a_private_attribute() -> None:
    """So that what they prove outlives how it is written. What `self` has is the test's own."""
    for folder in ("domain", "adapters/engine_process"):
        for page in (ROOT / "tests" / "unit" / folder).rglob("*.py"):
            reaches = [
                f"{page.relative_to(ROOT)}:{each.lineno}: {ast.unparse(each)}"
                for each in ast.walk(ast.parse(page.read_text()))
                if isinstance(each, ast.Attribute) and re.match("_[^_]", each.attr)
                if not (isinstance(each.value, ast.Name) and each.value.id in {"self", "cls"})
            ]
            assert reaches == []


def test_no_code_outside_the_domain_uses_the_scheduler() -> None:
    domain = ROOT / "src" / "nanoserve" / "domain"
    pages = [page for folder in ("src", "benchmarks", "tools") for page in (ROOT / folder).rglob("*.py")]
    for page in pages:
        if domain not in page.parents:
            code = re.sub(r"^from .*$", "", page.read_text(), flags=re.MULTILINE)
            assert not re.search(r"\._?scheduler\b", code), f"{page} reaches behind an engine's door"
