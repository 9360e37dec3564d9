"""The checks of `nanoserve verify`: the model's forward pass alone, then the whole engine around it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import attrs

from nanoserve.entrypoints.compose.assembly import Observed
from nanoserve.entrypoints.compose.bootstrap import assemble_for_verification
from nanoserve.entrypoints.compose.config.command_settings import VerifySettings
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.log import log_model
from nanoserve.entrypoints.offline.outputs import PositionLogprobs, RequestOutput
from nanoserve.entrypoints.offline.session import Session
from nanoserve.ports.driven import Activations, ReferenceModel
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import SamplingParams


@attrs.frozen
class ActivationComparison:
    """One row of the report: the largest absolute difference, NaN or infinite where either side is, and the reference's largest value, at least 1."""

    name: str
    error: float
    magnitude: float

    def within(self, tolerance: float) -> bool:
        """True if the error is at most this fraction of the magnitude; False for NaN."""
        return self.error <= tolerance * self.magnitude


@attrs.frozen
class VerifyVerdict:
    """Everything that was compared; `tokens` and `reference_tokens` are the greedy ids of both."""

    comparisons: Sequence[ActivationComparison]
    tokens: Sequence[int]
    reference_tokens: Sequence[int]

    @property
    def same_tokens(self) -> bool:
        """True if both chose the same tokens to the end."""
        return list(self.tokens) == list(self.reference_tokens)

    @property
    def num_equal_tokens(self) -> int:
        """The number of equal tokens before the first difference."""
        pairs = zip(self.tokens, self.reference_tokens, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    def passed(self, tolerance: float) -> bool:
        """True if every number is close enough and every token equal."""
        return self.same_tokens and all(each.within(tolerance) for each in self.comparisons)

    def lines(self, tolerance: float) -> Iterator[str]:
        """The report."""
        yield f"{'compared':<18} {'worst error':>12} {'magnitude':>12}  result"
        for each in self.comparisons:
            result = "ok" if each.within(tolerance) else "DIFFERS"
            yield f"{each.name:<18} {each.error:>12.3e} {each.magnitude:>12.3e}  {result}"
        counted = f"{self.num_equal_tokens} of {len(self.reference_tokens)} equal"
        yield f"{'greedy tokens':<18} {counted:>25}  {'ok' if self.same_tokens else 'DIFFERS'}"
        passed = self.passed(tolerance)
        yield "verified" if passed else f"not verified (tolerance {tolerance:g} of the magnitude)"


def verify_model(engine: EngineSettings, settings: VerifySettings) -> VerifyVerdict:
    """Load a model and transformers' own, in float32 unless a dtype is asked for, and compare them."""
    parts = assemble_for_verification(
        attrs.evolve(engine, dtype="float32") if engine.dtype == "auto" else engine
    )
    log_model(parts.assembly)
    session = Session(parts.assembly)
    return verify(session, parts.ours, parts.reference, settings.verify_prompt, settings.verify_tokens)


def verify(
    session: Session, ours: Observed, reference: ReferenceModel, prompt: str, num_tokens: int
) -> VerifyVerdict:
    """Continue a prompt greedily with the engine, then compare all that led there with the reference."""
    output = _generate(session, prompt, num_tokens)
    tokens = output.outputs[0].token_ids
    sequence = [*output.prompt_token_ids, *tokens[:-1]]
    expected = reference.activations(sequence)
    comparisons = compare_activations(ours(sequence), expected)
    comparisons += _compare_logprobs(output, expected)
    reference_tokens = reference.greedy(output.prompt_token_ids, max_tokens=num_tokens)
    return VerifyVerdict(comparisons, tokens, reference_tokens)


def _generate(session: Session, prompt: str, num_tokens: int) -> RequestOutput:
    sampling = SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=0, prompt_logprobs=0, detokenize=False
    )
    job = session.job(session.read_prompt(prompt), sampling)
    _check_length(len(job.prompt.token_ids), num_tokens, session.assembly.facts.max_model_len)
    for _ in session.run([job]):
        pass
    return job.output()


def _check_length(num_prompt_tokens: int, num_tokens: int, max_model_len: int) -> None:
    """The engine would stop at the context length and the reference would not."""
    if num_prompt_tokens + num_tokens > max_model_len:
        message = (
            f"{num_tokens} tokens after the prompt's {num_prompt_tokens} exceed the context of {max_model_len}; "
            "ask for fewer, or raise max_model_len"
        )
        raise BadValueError("verify_tokens", message)


def _compare_logprobs(output: RequestOutput, expected: Activations) -> list[ActivationComparison]:
    completion = output.outputs[0]
    ids = [*output.prompt_token_ids, *completion.token_ids]
    reference = [log_probability(row, token) for row, token in zip(expected.logits, ids[1:], strict=True)]
    prompt = [_own(each) for each in output.prompt_logprobs or [] if each is not None]
    generated = [_own(each) for each in completion.logprobs or []]
    boundary = len(prompt)
    return [
        compare("prompt logprobs", prompt, reference[:boundary]),
        compare("logprobs", generated, reference[boundary:]),
    ]


def _own(position: PositionLogprobs) -> float:
    """The actual token's entry comes first."""
    return next(iter(position.values())).logprob


def compare(name: str, ours: Iterable[float], reference: Iterable[float]) -> ActivationComparison:
    """Compare number by number; raises `ValueError` if one side has more."""
    error, magnitude = 0.0, 1.0
    for one, other in zip(ours, reference, strict=True):
        difference = abs(one - other)
        if not difference <= error:
            error = difference
            if math.isnan(error):
                break
        magnitude = max(magnitude, abs(other))
    return ActivationComparison(name, error, magnitude)


def compare_activations(ours: Activations, reference: Activations) -> list[ActivationComparison]:
    """Embeddings, every layer, and logits."""
    layers = zip(ours.layers, reference.layers, strict=True)
    return [
        compare("embeddings", _flat(ours.embeddings), _flat(reference.embeddings)),
        *(compare(f"layer {index}", _flat(a), _flat(b)) for index, (a, b) in enumerate(layers)),
        compare("logits", _flat(ours.logits), _flat(reference.logits)),
    ]


def log_probability(logits: Sequence[float], token: int) -> float:
    """The natural logarithm of a token's softmax probability."""
    peak = max(logits)
    return logits[token] - peak - math.log(math.fsum(math.exp(each - peak) for each in logits))


def _flat(rows: Iterable[Sequence[float]]) -> Iterable[float]:
    return (each for row in rows for each in row)
