"""`nanoserve verify` of the embedded model."""

from __future__ import annotations

import pytest

from nanoserve.entrypoints.cli.main import run_command


def test_the_embedded_model_is_verified_layer_by_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "--verify-tokens", "8", "--threads", "1"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert shown.err == ""
    names = [line[:18].strip() for line in lines]
    assert names[1:3] == ["embeddings", "layer 0"]
    assert names[-5:] == ["logits", "prompt logprobs", "logprobs", "greedy tokens", "verified"]
    assert "8 of 8 equal" in lines[-2]


def test_a_mismatch_is_shown_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(["verify", "--dtype", "bfloat16", "--verify-tokens", "2", "--threads", "1"])
    shown = capsys.readouterr().out
    assert ended.value.code == 1
    assert "DIFFERS" in shown
    assert "not verified (tolerance 0.0001 of the magnitude)" in shown


def test_a_prompt_longer_than_the_context_is_one_clear_line_and_debug_shows_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("generate", "word " * 40, "--max-model-len", "32", "--threads", "1")
    assert run_command(words) == 2
    plain = capsys.readouterr()
    assert plain.err.startswith("nanoserve: prompt: the prompt has")
    assert "the context holds 32" in plain.err
    assert (plain.out, plain.err.count("\n")) == ("", 1)
    run_command([*words, "--debug", "--log-json", "--log-level", "info"])
    loud = capsys.readouterr().err
    assert "Traceback (most recent call last)" in loud
    assert '"event": "model loaded"' in loud
