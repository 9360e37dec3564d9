"""The six experiments: settings of an engine, requests that arrive at given steps, and a caption for what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.ports.errors import BadValueError


@attrs.frozen(kw_only=True)
class ScriptedRequest:
    """A request, made of tokens of a story; it generates exactly `generates` tokens, greedily at temperature 0.

    Attributes:
        name: its name in tables and pictures.
        step: it arrives before this step is planned, or as soon as the engine has nothing else to do.
        shared: leading prompt tokens that are the same in every request that has any.
        own: prompt tokens after them, which no other request has.
        cancelled: it is aborted before this step is planned.
        n: how many answers are asked for.
    """

    name: str
    step: int = 1
    shared: int = 0
    own: int
    generates: int
    cancelled: int | None = None
    n: int = 1
    temperature: float = 0.0


@attrs.frozen(kw_only=True)
class Experiment:
    """One of the six.

    Attributes:
        title: what happens, in half a sentence.
        settings: the engine's, by name; flags of the command overrule them.
        requests: in the order in which they arrive.
        beside: settings in which a second run differs, to compare the first one with; None runs once.
        in_one_picture: the run beside it goes first, and both are in the report and the picture.
        caption: what the picture shows; the settings' names in braces stand for their values.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    requests: Sequence[ScriptedRequest]
    beside: Mapping[str, Any] | None = None
    in_one_picture: bool = False
    caption: str


_SMALL: Final = {"block_size": 16, "max_model_len": 256}
EXPERIMENTS: Final = (
    Experiment(
        name="prefix-hit",
        title="prompts that begin alike: the beginning is computed only once",
        settings=_SMALL | {"num_kv_blocks": 40, "enable_prefix_caching": True},
        requests=[
            ScriptedRequest(name="first", shared=96, own=20, generates=24),
            ScriptedRequest(name="second", step=6, shared=96, own=24, generates=24),  # while the first runs
            ScriptedRequest(name="third", step=30, shared=96, own=28, generates=16),  # when both have ended
        ],
        caption="second and third begin like first: what is in the cache (green) is not computed again",
    ),
    Experiment(
        name="chunked-prefill",
        title="a long prompt beside decoding neighbours: computed in chunks, and none of them waits for it",
        settings={
            "max_num_batched_tokens": 64, "max_num_seqs": 8, "num_kv_blocks": 48, "max_model_len": 512,
        },
        requests=[
            *(ScriptedRequest(name=name, own=16, generates=count) for name, count in zip("abc", (24, 28, 32), strict=True)),
            ScriptedRequest(name="long", step=8, own=300, generates=12),
        ],
        caption="a step computes at most {max_num_batched_tokens} tokens: the long prompt comes in chunks, its neighbours go on",
    ),
    Experiment(
        name="itl-bound",
        title="a long prompt against a bound on the gap between two tokens of its neighbours",
        settings={"max_itl_ms": 40.0, "max_num_batched_tokens": 1280, "max_num_seqs": 8, "num_kv_blocks": 128},
        beside={"max_itl_ms": None},
        in_one_picture=True,
        requests=[
            *(ScriptedRequest(name=name, own=16, generates=count) for name, count in zip("abc", (24, 26, 28), strict=True)),
            ScriptedRequest(name="long", step=8, own=1200, generates=8),
        ],
        caption="left, no bound: one step computes the whole prompt, and all wait for it; right, a bound of {max_itl_ms} ms",
    ),
    Experiment(
        name="preemption",
        title="a pool too small for all: the youngest steps back, and its text does not change",
        settings=_SMALL | {"num_kv_blocks": 16},
        beside={"num_kv_blocks": 64},
        requests=[ScriptedRequest(name=name, own=64, generates=34) for name in "abc"],
        caption="{num_kv_blocks} blocks are too few for three sequences: the youngest steps back (red), and comes back later",
    ),
    Experiment(
        name="share",
        title="eight answers to one prompt: its blocks are stored once and held eight times",
        settings=_SMALL | {"num_kv_blocks": 40},
        requests=[ScriptedRequest(name="story", own=88, generates=32, n=8, temperature=1.0)],
        caption="eight answers to one prompt: the blocks of the prompt (black) are stored once",
    ),
    Experiment(
        name="cancel",
        title="a client leaves: its blocks and its row are free at once, the neighbours go on",
        settings=_SMALL | {"num_kv_blocks": 32, "max_num_seqs": 3},
        requests=[
            ScriptedRequest(name="a", own=40, generates=48),
            ScriptedRequest(name="b", own=96, generates=48, cancelled=20),
            ScriptedRequest(name="c", own=40, generates=40),
            ScriptedRequest(name="d", step=4, own=40, generates=24),  # waits for a row
        ],
        caption="b is cancelled (x): its blocks are free before the next step, and d takes its row",
    ),
)  # fmt: skip
"""In the order in which they explain the engine."""


def find_experiment(name: str) -> Experiment:
    """The experiment of that name; raises `BadValueError`."""
    for each in EXPERIMENTS:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in EXPERIMENTS)
    raise BadValueError("EXPERIMENT", f"must be one of {names}, got {name!r}")
