from __future__ import annotations

import pathlib

import pytest

from nanoserve.entrypoints.bench.serving.request_files import read_requests
from nanoserve.ports.errors import BadValueError

MOONCAKE = """\
{"timestamp": 3500, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 9]}
{"timestamp": 500, "input_length": 512, "output_length": 0, "hash_ids": [46]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


@pytest.fixture
def written(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "trace"


def test_mooncake_says_what_is_shared(written: pathlib.Path) -> None:
    written.write_text(MOONCAKE)
    first, second = read_requests(str(written))
    assert (first.at, second.at) == (0.0, 3.0)
    assert (first.output_tokens, second.output_tokens) == (1, 52)
    assert second.prompt == ((92, 512), (94, 512), (18, 76))
    assert first.token_ids() == second.token_ids()[:512]
    assert second.affinity == 47


def test_azure_has_lengths_alone(written: pathlib.Path) -> None:
    written.write_text("\ufeff" + AZURE, encoding="utf-8")
    first, second = read_requests(str(written))
    assert second.at == pytest.approx(4.314579, abs=1e-5)
    assert [(each.num_tokens, each.output_tokens) for each in (first, second)] == [(374, 44), (396, 109)]
    assert not set(first.token_ids()) & set(second.token_ids())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a trace of requests; it must be Mooncake's JSON lines"),
        ("hello\n", "is not a trace of requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no request"),
        (MOONCAKE + '{"timestamp": 1}\n', "line 3: Object missing required field `input_length`"),
        (MOONCAKE + "{\n", "line 3: .*expected Mooncake's"),
        (MOONCAKE.replace(", 9]", "]"), r"line 1: 1100 tokens take 3 hash_ids of 512, got 2"),
        (AZURE.replace("396", "many"), "line 3: .*'many'"),
        (AZURE.replace("396", "0"), "line 3: lengths must be at least 1"),
        (AZURE + "2023\n", "line 4: "),
    ],
)
def test_what_is_no_trace_is_refused_by_line(written: pathlib.Path, text: str, complaint: str) -> None:
    written.write_text(text)
    with pytest.raises(BadValueError, match=complaint) as error:
        read_requests(str(written))
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadValueError, match="nowhere: cannot be read: No such file"):
        read_requests(str(tmp_path / "nowhere"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadValueError, match="binary: is not text"):
        read_requests(str(tmp_path / "binary"))
