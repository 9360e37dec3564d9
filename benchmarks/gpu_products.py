"""How fast products of a few rows read their weights, by the form of these: microseconds, and the share of what the device can read.

`python -m benchmarks.gpu_products --forms plain fp8 int4 --rows 1 8 64 512`. The weights are those of an 8B model, each in so many copies that none is in
the L2 cache, in one graph whose kernels overlap as in a decode step. A product of one row has its norm fused in; what is added to the residual stream
by more leaves partial sums. More than 64 rows, 16 in 8-bit floats, multiply as in prompts, the gate left out. `--tiles` tries others for each product.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu_ranks import need_gpu
from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.many_rows import VendorProducts
from nanoserve.adapters.pytorch.cuda.tuner import COLD_BYTES, time_in_graph, weight_bytes
from nanoserve.adapters.pytorch.cuda.workspace import MOST_SKINNY_ROWS, MOST_WIDENED_ROWS
from nanoserve.kernels.forms import FORMS, FP8, StoredWeight, form_of
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear import launch
from nanoserve.kernels.linear.launch import (
    LinearWorkspace,
    row_linear,
    skinny_linear,
    slice_count,
    split_linear,
)
from nanoserve.kernels.linear.tuning import RowTile, SkinnyTile, skinny_tile

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
ADDED = ("o", "down")
LAYERS = 32
REPLAYS = 15
BF16 = torch.bfloat16
Times = dict[tuple[str, str, int], float]
"""Microseconds by form, product and rows."""


def main() -> None:
    """A table of each product's time by rows and form."""
    arguments = _arguments()
    need_gpu()
    for name, (n, k) in SHAPES.items():
        SHAPES[name] = (n, k // arguments.ranks) if name in ADDED else (n // arguments.ranks, k)
    ceiling = arguments.ceiling or _read_speed()
    print(f"{torch.cuda.get_device_name()}: {ceiling:.0f} GB/s are read", flush=True)
    times: Times = {}
    _compile(arguments)
    for form in arguments.forms:
        totals = dict.fromkeys(arguments.rows, 0.0)
        floor = 0.0
        for name in arguments.products:
            weights = _weights(form, *SHAPES[name])
            size = weight_bytes(weights[0])
            floor += size / ceiling / 1000 * (1 if name == "head" else LAYERS)
            for rows in arguments.rows:
                launches = _launches(name, rows, weights)
                taken = times[form, name, rows] = time_in_graph(launches, REPLAYS)
                totals[rows] += taken * (1 if name == "head" else LAYERS)
                print(f"{form:6s} {name:8s} {rows:3d} rows {taken:8.2f} us {size / taken / 1000:6.0f} GB/s {_share(size, taken, ceiling)}", flush=True)  # fmt: skip
                for tile, alternative in _alternatives(arguments.tiles, rows):
                    with alternative:
                        try:
                            other = time_in_graph(_launches(name, rows, weights), REPLAYS)
                        except Exception as error:  # noqa: BLE001 - some do not fit, and say so in many ways
                            print(f"    {tile}: {type(error).__name__}")
                            continue
                    mark = " <" if other < taken * 0.98 else ""
                    print(f"    {tile} {other:8.2f} us {_share(size, other, ceiling)}{mark}", flush=True)
            del weights
        for rows, total in totals.items():
            print(f"{form:6s} all      {rows:3d} rows {total:8.0f} us {floor / total:6.1%}", flush=True)
    if "plain" in arguments.forms:
        print_beside_plain(times, arguments)


def _compile(arguments: argparse.Namespace) -> None:
    """All kernels at once, each of which takes seconds."""
    with compiling_ahead(os.cpu_count() or 1):
        for form, name in itertools.product(arguments.forms, arguments.products):
            weights = _weights(form, *SHAPES[name], copies=1)
            for rows in arguments.rows:
                _launches(name, rows, weights)[0]()
                for _, alternative in _alternatives(arguments.tiles, rows):
                    with alternative, contextlib.suppress(ValueError):
                        _launches(name, rows, weights)[0]()


def print_beside_plain(times: Times, arguments: argparse.Namespace) -> None:
    """Microseconds of each product by rows in bfloat16, and how many times as long the other forms take; with a mark if longer."""
    others = [form for form in arguments.forms if form != "plain"]
    print(f"{'rows':>5s} {'product':8s} {'plain':>9s} {' '.join(f'{form:>7s}' for form in others)}")
    for rows, name in itertools.product(arguments.rows, arguments.products):
        plain = times["plain", name, rows]
        shares = [times[form, name, rows] / plain for form in others]
        marked = " ".join(f"{share:6.2f}{'*' if share > 1 else ' '}" for share in shares)
        print(f"{rows:5d} {name:8s} {plain:9.2f} {marked}", flush=True)


def _share(size: int, taken: float, ceiling: float) -> str:
    return f"{size / taken / 1000 / ceiling:6.1%}"


def _weights(form: str, n: int, k: int, copies: int | None = None) -> list[Tensor | StoredWeight]:
    def made(seed: int) -> Tensor | StoredWeight:
        torch.manual_seed(seed)
        if form == "plain":
            return torch.randn(n, k, device="cuda", dtype=BF16).mul_(k**-0.5)
        kind = FORMS[form]
        pieces = [
            kind.quantize(torch.randn(rows, k, device="cuda") * k**-0.5)
            for rows in [8192] * (n // 8192) + [n % 8192] * (n % 8192 > 0)
        ]
        numbers, scales = (torch.cat(each) for each in zip(*pieces, strict=True))
        return StoredWeight(kind, numbers, scales)

    first = made(0)
    return [first, *(made(seed) for seed in range(1, copies or -(-COLD_BYTES // weight_bytes(first))))]


def _launches(name: str, rows: int, weights: list[Tensor | StoredWeight]) -> list[Callable[[], None]]:
    n, k = SHAPES[name]
    x, norm = torch.randn(rows, k, device="cuda", dtype=BF16), torch.ones(k, device="cuda", dtype=BF16)
    gate: Activation | None = "silu" if name == "gate_up" else None
    out = torch.empty(rows, n // 2 if gate else n, device="cuda", dtype=BF16)

    def launch_one(weight: Tensor | StoredWeight) -> None:
        if rows == 1:
            added = name in ADDED
            row_linear(
                *(x, weight, out), norm_weight=None if added else norm, eps=1e-5,
                residual=out if added else None, gate=gate, pdl=True,
            )  # fmt: skip
        elif rows > most:
            linear: Any = SimpleNamespace(matrix=weight, bias=None)
            products.multiply(many, x, linear, whole)
        elif name in ADDED:
            split_linear(x, weight, partials, pdl=True)
        else:
            skinny_linear(x, weight, out, workspace=space, gate=gate, pdl=True)

    most = MOST_WIDENED_ROWS if isinstance(form_of(weights[0]), FP8) else MOST_SKINNY_ROWS
    if rows > most:
        products, whole = VendorProducts(), torch.empty(rows, n, device="cuda", dtype=BF16)
        eight_bits = torch.empty(rows * k, device="cuda", dtype=torch.float8_e4m3fn)
        many: Any = SimpleNamespace(
            widened=torch.empty(n * k, device="cuda", dtype=BF16),
            quantized=(eight_bits, torch.empty(rows, device="cuda")),
            linear=LinearWorkspace.create(weights[:1], max_m=1, dtype=BF16, device=torch.device("cuda")),
        )
    elif rows > 1:
        partials = torch.empty(slice_count(rows, weights[0]), rows, n, device="cuda")
        space = LinearWorkspace.create(weights[:1], max_m=128, dtype=BF16, device=torch.device("cuda"))
    return [functools.partial(launch_one, weight) for weight in weights]


def _alternatives(
    which: str | None, rows: int
) -> Iterator[tuple[str, contextlib.AbstractContextManager[object]]]:
    if which is None:
        return
    if rows == 1:
        for tile in itertools.starmap(RowTile, itertools.product((2, 4, 8), (2, 4, 8), (1024, 2048, 4096))):
            yield str(tile), mock.patch.object(launch, "row_tile", lambda *_, tile=tile, **__: tile)
        return
    for sizes in itertools.product((64, 128), (64, 128, 256), (3, 5)):
        yield str(sizes), mock.patch.object(launch, "skinny_tile", functools.partial(_other_tile, sizes))


def _other_tile(tile: tuple[int, int, int], *args: Any, **named: Any) -> SkinnyTile:
    bn, bk, stages = tile
    return skinny_tile(*args, **named)._replace(bn=bn, bk=bk, stages=stages, straight=False)


def _read_speed() -> float:
    """GB/s of a sum over 4 GiB."""
    numbers = torch.ones(1 << 30, device="cuda")
    return 4 * numbers.numel() / time_in_graph([numbers.sum], REPLAYS) / 1000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forms", nargs="+", default=["plain", "fp8", "int4"], choices=["plain", *FORMS])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--products", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--ceiling", type=float, help="GB/s that the device reads; measured if left out")
    parser.add_argument("--ranks", type=int, default=1, help="the weights are those of one rank")
    parser.add_argument("--tiles", action="store_const", const="all")
    return parser.parse_args()


if __name__ == "__main__":
    main()
