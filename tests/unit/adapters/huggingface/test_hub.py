"""Finding a model: in a folder, or on a hub, whose part a server on 127.0.0.1 plays."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from nanoserve.adapters.huggingface.folders import present_model
from nanoserve.adapters.huggingface.hub import download_model
from nanoserve.ports.errors import ModelLoadError
from tests.http_thread import Answering, answering
from tests.patience import PATIENCE

Resolve = Callable[..., list[dict[str, Any]]]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "merges.txt": b"a b",
    "tokenizer.model": b"sp",
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "evil.py": b"import os",
    "README.md": b"# Model",
    "original/consolidated.safetensors": b"again",
    "onnx/config.json": b"{}",
}
REPOSITORIES = {
    "tiny/model": {**MODEL, **UNWANTED},
    "tiny/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "tiny/quantized": {"README.md": b"", "m-Q4_K_M.gguf": b"GGUF", "m-Q8_0.gguf": b"GGUF more"},
    "tiny/adapter": {"adapter_model.safetensors": b"lora"},
}
REFUSALS = {"tiny/gated": (403, "GatedRepo"), "tiny/private": (401, "RepoNotFound"), "tiny/broken": (500, "")}
CLIENT = """
import json, sys
from nanoserve.adapters.huggingface.folders import present_model
from nanoserve.adapters.huggingface.hub import download_model
from nanoserve.ports.errors import ModelLoadError

for line in sys.stdin:
    name, options = json.loads(line)
    try:
        answer = {"folder": present_model(name) or download_model(name, **options)}
    except ModelLoadError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
"""


def resolve_model(name: str) -> str:
    return present_model(name) or download_model(name)


class FakeHub(Answering):
    """As much of the hub's HTTP interface as a download needs; `asked` lists the paths of the requests."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012 - shared by the requests of one module's tests

    def reply(self) -> None:
        self.asked.append(self.path)
        status, headers, body = _answer(self.path.strip("/"))
        self.say(body, status, headers)


def _answer(path: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    parts = path.partition("?")[0].removeprefix("api/models/").split("/")
    owner, name, verb, revision, *rest = [*parts, "", ""]
    repository, file = f"{owner}/{name}", "/".join(rest).strip("/")
    status, code = REFUSALS.get(repository, (404, "RepoNotFound"))
    if repository not in REPOSITORIES:
        return status, {"X-Error-Code": code} if code else {}, b"{}"
    if revision not in {"main", "v1", COMMIT}:
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    files = REPOSITORIES[repository]
    sums = {each: hashlib.sha1(body).hexdigest() for each, body in files.items()}
    listing: Any = [
        {"type": "file", "path": each, "size": len(body), "oid": sums[each]} for each, body in files.items()
    ]
    if verb == "revision":
        listing = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": each} for each in files]}
    if path.startswith("api/"):
        return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()
    if file not in files:
        return 404, {"X-Error-Code": "EntryNotFound"}, b""
    return 200, {"ETag": f'"{sums[file]}"', "X-Repo-Commit": COMMIT}, files[file]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of the hub."""
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)) as url:
        yield url


@pytest.fixture
def resolve(tmp_path: pathlib.Path, endpoint: str) -> Resolve:
    """Finds a model, or downloads it, for one name after the other in a process of its own: the hub's settings are read at import.

    Returns the folders or errors; what the process wrote to its terminal is with the last one.
    """

    def run(*asked: tuple[str, dict[str, Any]], **environment: str) -> list[dict[str, Any]]:
        home = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CLIENT],
            input="".join(f"{json.dumps(each)}\n" for each in asked),
            env={**os.environ, **home, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        answers[-1]["terminal"] = done.stderr
        return answers

    return run


def test_a_models_files_and_no_others_are_downloaded_once(resolve: Resolve) -> None:
    [first] = resolve(("tiny/model", {"progress": True}))
    folder = pathlib.Path(first["folder"])
    found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert found == MODEL
    assert "100%" in first["terminal"]
    asked = len(FakeHub.asked)
    gguf = ("tiny/quantized:m-Q8_0.gguf", {"progress": False})
    again, one_file = resolve(("tiny/model", {"revision": "v1", "progress": False}), gguf)
    assert again["folder"] == first["folder"]
    assert not [path for path in FakeHub.asked[asked:] if "tiny/model/resolve/" in path]
    assert pathlib.Path(one_file["folder"]).read_bytes() == b"GGUF more"
    assert [each.name for each in pathlib.Path(one_file["folder"]).parent.iterdir()] == ["m-Q8_0.gguf"]
    assert "%" not in one_file["terminal"]
    asked = len(FakeHub.asked)
    offline = resolve(("tiny/model", {}), ("tiny/private", {}), HF_HUB_OFFLINE="1")
    assert offline[0]["folder"] == first["folder"]
    assert_refused(offline[1], "tiny/private", ["HF_HUB_OFFLINE"])
    assert FakeHub.asked[asked:] == []


REFUSED: dict[str, list[str]] = {
    "tiny/absent": ["is not on the hub", "check the spelling", "local folder"],
    "tiny/private": ["is not on the hub", "hf auth login"],
    "tiny/gated": ["is gated", "ask for access", "hf auth login"],
    "tiny/pickled": ["no safetensors weights", "choose a model or revision that has them"],
    "tiny/quantized": ["no safetensors", "such as tiny/quantized:m-Q4_K_M.gguf", "m-Q8_0.gguf"],
    "tiny/quantized:m-Q2_K.gguf": ["m-Q2_K.gguf: there is no such file", "tiny/quantized:m-Q4_K_M.gguf"],
    "tiny/quantized:m-00001-of-00002.gguf": ["one part", "llama-gguf-split --merge"],
    "tiny/absent:m.gguf": ["is not on the hub", "check the spelling"],
    "tiny/adapter": ["has no config.json"],
    "tiny/broken": ["HTTP status 500", "try again"],
}


def test_each_refusal_says_what_to_do(resolve: Resolve) -> None:
    *answers, revision = resolve(*((name, {}) for name in REFUSED), ("tiny/model", {"revision": "v9"}))
    for answer, (name, parts) in zip(answers, REFUSED.items(), strict=True):
        assert_refused(answer, name, parts)
    assert_refused(revision, "tiny/model", ["tiny/model: has no revision 'v9'"])
    [unreachable] = resolve(("tiny/model", {}), HF_ENDPOINT="http://127.0.0.1:9")
    assert_refused(unreachable, "tiny/model", [":9 cannot be reached"])
    [nowhere] = resolve(("tiny/model", {}), HF_ENDPOINT="hub.example")
    assert_refused(nowhere, "tiny/model", ["HF_ENDPOINT must be an address", "'hub.example'"])


def assert_refused(answer: dict[str, Any], name: str, parts: list[str]) -> None:
    error = answer["error"]
    assert all(part in error for part in parts), error
    assert name.split("/")[1] in error
    assert "\n" not in error


def test_an_existing_folder_is_itself(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == str(folder)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/model") == "owner/model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/owner/model") == str(folder)
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_model(str(folder / "config.json"))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["a.gguf"], "a.gguf"),
        (["config.json", "a.gguf", "mmproj-a.gguf", "pytorch_model.bin"], "a.gguf"),
        (["config.json", "a.gguf", "b.gguf", "model.safetensors"], "."),
    ],
)
def test_a_folder_without_safetensors_stands_for_its_gguf_file(
    tmp_path: pathlib.Path, files: list[str], found: str
) -> None:
    for each in files:
        (tmp_path / each).touch()
    assert resolve_model(str(tmp_path)) == str(tmp_path / found)
    assert resolve_model(str(tmp_path / "a.gguf")) == str(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (["a.gguf", "b.gguf"], ["holds several GGUF files (a.gguf, b.gguf)", "name one"]),
        (
            ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"],
            ["a-00001-of-00002.gguf: is one part", "--merge"],
        ),
        (
            ["config.json", "pytorch_model.bin"],
            ["pickled (pytorch_model.bin)", "convert", "save_pretrained('"],
        ),
        (["consolidated.00.pth", "params.json"], ["pickled (consolidated.00.pth)"]),
        (["model.safetensors"], ["has no config.json"]),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused(
    tmp_path: pathlib.Path, files: list[str], parts: list[str]
) -> None:
    for each in files:
        (tmp_path / each).touch()
    with pytest.raises(ModelLoadError) as refused:
        resolve_model(str(tmp_path))
    assert all(part in str(refused.value) for part in [str(tmp_path), *parts]), refused.value


@pytest.mark.parametrize(
    "name", ["gone.gguf", "./gone", "/gone", "~/gone", "~nobody-here", "../gone/model", "a/b/c", "gone/", "."]
)
def test_a_path_that_is_no_model_folder_is_never_asked_of_the_hub(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no such folder|has no config\.json"):
        resolve_model(name)


@pytest.mark.parametrize("name", ["", "a b/c", "-a/b", "a--b", "owner/na\x00me", "o" * 5000])
def test_a_name_the_hub_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError):
        resolve_model(name)
