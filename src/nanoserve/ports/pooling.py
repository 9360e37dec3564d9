"""Pooling: requests that turn a prompt into a vector instead of answering it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from nanoserve.ports.checks import check_integer, shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.model_spec import PooledLayer


class PoolingKind(enum.Enum):
    """Which of a prompt's hidden states are used; the values are those of configs. `ALL` keeps all, one after the other."""

    LAST = "lasttoken"
    MEAN = "mean"
    FIRST = "cls"
    ALL = "all"


def _tuple_of_ids(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(ids)


@attrs.frozen(kw_only=True)
class Pooling:
    """One vector of a prompt's hidden states behind the last norm: one of them, or their mean; then through the model's `pooled_layers`.

    Attributes:
        token_ids: report the logits of these tokens behind it, in its place.
        second: the position at which the second text of a pair begins, where encoders see a difference; 0 for none.
    """

    kind: PoolingKind = PoolingKind.LAST
    token_ids: tuple[int, ...] = attrs.field(default=(), converter=_tuple_of_ids)
    second: int = 0

    @property
    def reads_all(self) -> bool:
        """True if it needs the states of all tokens, which a cached prefix does not have."""
        return self.kind is not PoolingKind.LAST


class Task(enum.Enum):
    """The uses of a model that writes no text."""

    EMBED = "embed"
    CLASSIFY = "classify"
    TOKEN_CLASSIFY = "token_classify"  # noqa: S105 - no password
    RERANK = "rerank"


class Activation(enum.Enum):
    """The function from a classifier's numbers to scores."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


@attrs.frozen(kw_only=True)
class PoolerSpec:
    """The vectors that a model makes of texts instead of answers, as its files say.

    Attributes:
        width: numbers in a vector.
        normalized: whether vectors have the length 1.
        prompts: what is put before a text, by the name of what the text is.
        default_prompt: the name of the one that is taken where none is named.
        labels: the classes of a classifier, in the order of its numbers.
        activation: what makes scores of these.
        layers: what vectors pass through.
        shorter: the numbers that vectors may be cut to; None for any, where the model's files do not say.
    """

    task: Task
    width: int = 0
    pooling: Pooling = Pooling()
    normalized: bool = False
    prompts: Mapping[str, str] = attrs.field(factory=dict)
    default_prompt: str | None = None
    labels: tuple[str, ...] = ()
    activation: Activation = Activation.SOFTMAX
    layers: tuple[PooledLayer, ...] = ()
    shorter: tuple[int, ...] | None = None

    def prompt(self, name: str | None) -> str:
        """The words that are put before a text; raises `BadValueError` for a name that the model does not know."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise BadValueError("prompt_name", f"{shown(name)} is not one of the model's; known: {known}")
        return self.prompts[name]

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise `BadValueError` for a number of dimensions that its vectors do not have."""
        if dimensions is None or dimensions == self.width:
            return
        check_integer("dimensions", dimensions, 1, self.width)
        if self.shorter is not None and dimensions not in self.shorter:
            also = "".join(f", {each}" for each in self.shorter)
            raise BadValueError(
                "dimensions", f"must be {self.width}{also}: this model's vectors cannot be cut otherwise"
            )

    def vector(self, pooled: Sequence[float], dimensions: int | None = None) -> list[float]:
        """A pooled vector as clients get it: its first `dimensions` numbers, normalized at the end.

        Cutting needs a model that was trained for it (Matryoshka, Kusupati et al. 2022).
        """
        cut = list(pooled[:dimensions])
        length = math.hypot(*cut) if self.normalized else 1.0
        return [each / length for each in cut] if length > 0.0 else cut

    def by_token(self, pooled: Sequence[float]) -> list[Sequence[float]]:
        """The numbers of each token, which lie one behind the other in what is pooled of all."""
        count = len(self.labels)
        return [pooled[start : start + count] for start in range(0, len(pooled), count)]

    def label(self, scores: Sequence[float]) -> str:
        """The likeliest class."""
        return self.labels[scores.index(max(scores))]

    def scores(self, pooled: Sequence[float]) -> list[float]:
        """The score of each class by a classifier, of no and yes by a reranker."""
        if self.activation is Activation.NONE:
            return list(pooled)
        if self.activation is Activation.SIGMOID:
            return [_softmax([0.0, each])[1] for each in pooled]
        return _softmax(pooled)


def _softmax(numbers: Sequence[float]) -> list[float]:
    largest = max(numbers)
    weights = [math.exp(each - largest) for each in numbers]
    return [each / math.fsum(weights) for each in weights]
