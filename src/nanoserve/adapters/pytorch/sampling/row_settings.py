"""A row's sampling settings as the numbers that the device's kernels read."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nanoserve.ports.step import RowSampling

SMALLEST_SETTING: Final = 1e-6
"""Smaller temperatures and top-p values mean the same and could vanish in float32."""


@attrs.frozen(kw_only=True)
class DeviceSettings:
    """The settings of one row for `kernels/sampling`.

    Attributes:
        temperature: 0 for a row that takes the likeliest token.
        top_k: from 1 to the vocabulary's size, which is off.
        top_p: above 0; 1 is off.
        min_p: 0 is off.
        seed_low: the low 32 bits of the seed, read as a signed number.
        seed_high: the next 32 bits.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed_low: int
    seed_high: int


NUMBERS: Final[Mapping[str, type]] = {
    name: kind for name, kind in typing.get_type_hints(DeviceSettings).items() if not name.startswith("seed")
}
"""The settings beside the seed, as the kernels' arguments are called, and whether each is a `float` or an `int`."""


def device_settings(sampling: RowSampling, vocab_size: int) -> DeviceSettings:
    """The settings of one row, those that could vanish in float32 kept above 0."""
    greedy = 0 in (sampling.temperature, sampling.top_p) or sampling.top_k == 1
    return DeviceSettings(
        temperature=0.0 if greedy else max(sampling.temperature, SMALLEST_SETTING),
        top_k=sampling.top_k if 0 < sampling.top_k < vocab_size else vocab_size,
        top_p=max(sampling.top_p, SMALLEST_SETTING),
        min_p=sampling.min_p,
        seed_low=_signed(sampling.seed),
        seed_high=_signed(sampling.seed >> 32),
    )


def acting(settings: Sequence[DeviceSettings], vocab_size: int) -> dict[str, list[float]]:
    """The numbers of rows that draw by the names of `NUMBERS`; a filter that none of them uses is absent."""
    off = device_settings(RowSampling(seed=0), vocab_size)
    columns = {name: [getattr(each, name) for each in settings] for name in NUMBERS}
    return {
        name: values
        for name, values in columns.items()
        if name == "temperature" or any(value != getattr(off, name) for value in values)
    }


def _signed(number: int) -> int:
    """The low 32 bits, read as a signed number."""
    return (number + 2**31) % 2**32 - 2**31
