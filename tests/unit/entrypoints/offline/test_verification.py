"""The comparison behind `nanoserve verify`, on numbers made up so that the right answer is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from nanoserve.domain.scheduling.admission import derive_seed
from nanoserve.entrypoints.offline.session import Session
from nanoserve.entrypoints.offline.verification import compare, log_probability, verify
from nanoserve.ports.driven import Activations
from nanoserve.ports.errors import BadValueError
from tests.fakes.memory_runner import expected_token
from tests.unit.entrypoints.scripted_world import SPEC, scripted_assembly


@pytest.mark.parametrize(
    ("ours", "reference", "error", "magnitude", "passes"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 2.0, True),
        ([0.1], [0.10005], 5e-5, 1.0, True),
        ([0.1], [0.1002], 2e-4, 1.0, False),
        ([1000.0, 0.0], [1000.05, 0.0], 0.05, 1000.05, True),
        ([-1.0], [1.0], 2.0, 1.0, False),
        ([0.0, math.nan, 0.0], [0.0, 0.0, 0.0], math.nan, 1.0, False),
        ([math.inf], [math.inf], math.nan, 1.0, False),
        ([math.inf], [0.0], math.inf, 1.0, False),
    ],
)
def test_errors_are_measured_against_the_magnitude(
    ours: list[float], reference: list[float], error: float, magnitude: float, passes: bool
) -> None:
    row = compare("row", ours, reference)
    assert row.error == pytest.approx(error, nan_ok=True)
    assert row.magnitude == pytest.approx(magnitude)
    assert row.within(1e-4) is passes


def test_different_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        compare("row", [1.0], [1.0, 2.0])


def test_log_probability_is_the_log_of_the_softmax_and_survives_large_logits() -> None:
    assert log_probability([0.0, math.log(3.0)], 1) == pytest.approx(math.log(0.75))
    assert log_probability([1000.0, 1000.0], 0) == pytest.approx(-math.log(2.0))


class Oracle:
    """A reference that agrees with the scripted engine, except where it is told to be wrong."""

    def __init__(self, *, seed: int, wrong: str = "") -> None:
        self._seed = seed
        self._wrong = wrong

    def activations(self, token_ids: Sequence[int], /) -> Activations:
        rows = [[float(token)] for token in token_ids]
        layer = [[each + (self._wrong == "layer")] for (each,) in rows]
        logits = [[0.0] * SPEC.vocab_size for _ in token_ids]
        return Activations(embeddings=rows, layers=[rows, layer], logits=logits)

    def greedy(self, token_ids: Sequence[int], /, *, max_tokens: int) -> list[int]:
        ids = list(token_ids)
        for _ in range(max_tokens):
            ids.append(expected_token(ids, derive_seed(self._seed, 0), SPEC.vocab_size))
        if self._wrong == "token":
            ids[-2] = (ids[-2] + 1) % SPEC.vocab_size
        return ids[len(token_ids) :]


@pytest.mark.parametrize(("wrong", "differing"), [("", []), ("layer", ["layer 1"]), ("token", [])])
def test_each_kind_of_difference_is_found_and_named(
    wrong: str, differing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanoserve.entrypoints.app.orders.secrets.randbits", lambda _bits: 11)
    session = Session(scripted_assembly())
    verdict = verify(session, Oracle(seed=11).activations, Oracle(seed=11, wrong=wrong), "once upon", 6)
    close = {each.name: each.within(1e-4) for each in verdict.comparisons}
    assert close.pop("logprobs") is False
    assert close.pop("prompt logprobs") is False
    assert [name for name, fine in close.items() if not fine] == differing
    assert verdict.num_equal_tokens == (4 if wrong == "token" else 6)
    assert verdict.same_tokens is (wrong != "token")
    assert not verdict.passed(1e-4)


def test_more_tokens_than_the_context_holds_are_refused_before_anything_runs() -> None:
    assembly = scripted_assembly()
    with pytest.raises(BadValueError, match=r"^verify_tokens: 999 tokens after the prompt's \d+ exceed"):
        verify(Session(assembly), Oracle(seed=11).activations, Oracle(seed=11), "once upon", 999)
    assert vars(assembly.engine)["_runner"].num_steps == 0
