"""What families switch on in kernels compiles for a real GPU, which Triton's interpreter does not show; needs no GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

from tests.interpreter.cuda.test_compiles import REAL_COMPILES

PROGRAM = (
    REAL_COMPILES.partition("counter = ")[0]
    + """
import torch

from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.kernels.tiles import BlockSizes
from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.paged_attention.launch import decode_attention
from nanoserve.kernels.paged_attention.tuning import Tiling, copied_sizes
from nanoserve.kernels.copies.launch import embed_tokens
from nanoserve.kernels.latent_attention.launch import expanded_attention
from nanoserve.kernels.tiles import ROLES
from nanoserve.kernels.pointwise.launch import gated_activation_into
from nanoserve.kernels.forms import FP8, Int4, StoredWeight
from nanoserve.kernels.linear import tuning
from nanoserve.kernels.linear.copied.launch import multiplied_by_copies
from nanoserve.kernels.linear.gated.launch import gated_linear
from nanoserve.kernels.linear.launch import LinearWorkspace, fp8_linear, row_linear, skinny_linear
from nanoserve.kernels.linear.low_rank.launch import expand
from nanoserve.kernels.heads import HeadTransform, Scoring
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention.launch import prefill_attention
from nanoserve.kernels.forms.launch import quantize_rows_into
from nanoserve.kernels.pointwise.launch import add_partials_into, add_rms_norm_into

HALF = torch.bfloat16
cpu = torch.device("cpu")
some = torch.zeros(4, dtype=torch.int32)
norm = torch.ones(64)


def halves(*shape):
    return torch.zeros(*shape, dtype=HALF)


tuning.LEAST_STRAIGHT = 1


def launch_all():
    for gate in (None, "silu", "gelu_tanh"):
        width = 64 if gate is None else 32
        row_linear(halves(1, 64), halves(64, 64), halves(1, width), norm_weight=norm, gate=gate)
        space = LinearWorkspace.create([halves(64, 64)], max_m=2, dtype=HALF, device=cpu)
        skinny_linear(halves(2, 64), halves(64, 64), halves(2, width), workspace=space, gate=gate)
        tile = tuning.CopiedTile(16, 64, 64, 3)
        for adapted in (expand(None, 64), {"ready_ptr": some[:1], "deltas_ptr": halves(2, 64), "slots_ptr": some}):
            how = {"tile": tile, "adapted": adapted}
            multiplied_by_copies(halves(2, 128), halves(64, 128), halves(2, width), gate=gate, bias=halves(64), **how)
        if gate is not None:
            gated_activation_into(halves(2, 64), halves(2, 32), activation=gate)
            gated_linear(halves(200, 64), halves(256, 64), halves(200, 128), gate=gate)
    multiplied_by_copies(halves(2, 256), halves(64, 256), torch.zeros(2, 2, 64), splits=2, **how)
    numbers, scales = torch.zeros(2, 256, dtype=FP8.dtype), torch.zeros(2)
    quantize_rows_into(halves(2, 512), numbers, scales, activation="silu")
    for form, count in ((FP8(), 1), (FP8(128), 2), (FP8(128, 128), 2)):
        weight = StoredWeight(form, torch.zeros(64, 256, dtype=FP8.dtype), torch.zeros(64, count))
        fp8_linear(numbers, scales, weight, halves(2, 64))
        tile, adapted, out = tuning.CopiedTile(32, 64, 128, 2), expand(None, 64), halves(2, 64)
        multiplied_by_copies(halves(2, 256), weight, halves(2, 32), adapted, tile=tile, gate="silu", bias=halves(64))
        multiplied_by_copies(halves(2, 256), weight, torch.zeros(2, 2, 64), adapted, tile=tile, splits=2)
        multiplied_by_copies(numbers, weight, out, adapted, tile=tile, x_scales=scales, residual=out)
    for form in (FP8(), Int4()):
        kept = (torch.zeros(2048, form.stored_width(2048), dtype=form.dtype), torch.zeros(2048, form.scale_count(2048), dtype=form.scale_dtype))
        weight = StoredWeight(form, *kept)
        space = LinearWorkspace.create([weight], max_m=2, dtype=HALF, device=cpu)
        skinny_linear(halves(2, 2048), weight, halves(2, 2048), workspace=space)
        row_linear(halves(1, 2048), weight, halves(1, 2048))
    x, partials = halves(2, 64), torch.zeros(2, 2, 64)
    add_rms_norm_into(x, norm, halves(2, 64), eps=0.1, partials=partials, branch_norm=norm)
    add_partials_into(x, partials, eps=0.1, branch_norm=norm)
    embed_tokens(some.view(1, 4), some, some, halves(9, 64), halves(4, 64), scale=8.0)
    cache = PagedCache(halves(2, 1, 16, 64), halves(2, 1, 16, 64), some.view(1, 4), 7)
    transform, scratch = HeadTransform(torch.zeros(9, 64), norm, norm, 0.1), SplitScratch.create(1, 2, 64, 1, cpu)
    for scoring in (Scoring(0.1), Scoring(0.1, 2.0), Scoring(0.1, None, halves(2))):
        how = {"batch_rows": some[:1], "lengths": some, "splits": 1, "tiling": Tiling(16, 4, 3, early=True)}
        decode_attention(halves(1, 256), cache, transform, halves(1, 128), scratch=scratch, scoring=scoring, **how)
        tiles, blocks = some.view(1, 4), BlockSizes(16, 16, 4, 2)
        prefill_attention(halves(4, 128), cache, halves(4, 128), tiles=tiles, scoring=scoring, blocks=blocks)
    for window, block_size, soft_cap in ((None, 16, None), (7, 256, 2.0)):
        wide = PagedCache(halves(2, 1, block_size, 128), halves(2, 1, block_size, 128), some.view(1, 4), window)
        prefill_attention(halves(4, 256), wide, halves(4, 256), tiles=tiles, scoring=Scoring(0.1, soft_cap), by_roles=True)
    sums = SplitScratch.create(4, 2, 128, 1, cpu)
    keys = halves(4, 2, 256), halves(4, 576), halves(4, 2, 128)
    expanded_attention(halves(4, 2, 192), *keys, tiles=tiles, spans=tiles, sums=sums, scale=0.1, blocks=ROLES, taken=some)
    how = {"batch_rows": some[:1], "lengths": some, "scratch": SplitScratch.create(4, 2, 256, 2, cpu)}
    for head_dim, kept, splits, cap, drafts in ((64, HALF, 1, None, {}), (128, FP8.dtype, 2, 2.0, {}), (256, HALF, 2, None, {"width": 4, "limits": some})):
        pool, width = torch.zeros(2, 1, 16, head_dim, dtype=kept), drafts.get("width", 1)
        cache = PagedCache(pool, pool, some.view(1, 4), 7 if drafts else None, torch.ones(2, 1) if kept is not HALF else None)
        transform = HeadTransform(torch.zeros(9, head_dim), halves(head_dim), halves(head_dim), 0.1)
        tiling = copied_sizes(2 * width, head_dim)
        decode_attention(halves(width, 4 * head_dim), cache, transform, halves(width, 2 * head_dim), tiling=tiling, splits=splits, scoring=Scoring(0.1, cap), **how, **drafts)


counter = CompileCounter()
counter.start()
with compiling_ahead(2):
    launch_all()
print(json.dumps(counter.late))
"""
)


PENALTIES = (
    REAL_COMPILES.partition("counter = ")[0]
    + """
import torch

from nanoserve.adapters.pytorch.cuda.compiles import compiling_ahead
from nanoserve.adapters.pytorch.cuda.windows import WIDTHS
from nanoserve.kernels.logits.launch import apply_penalties

counter = CompileCounter()
counter.start()
rows, counts = torch.zeros(4, dtype=torch.int32), torch.zeros(1, 64, dtype=torch.int32)
for width in (1, 2, 4, *WIDTHS):
    before = None if width == 1 else torch.zeros(4, width - 1, dtype=torch.int32)
    where = {"batch_rows": rows, "output_counts": counts, "in_prompt": counts > 0, "strengths": torch.ones(4, 3)}
    with compiling_ahead(1):
        apply_penalties(torch.zeros(4, 64), **where, before=before)
print(json.dumps(counter.late))
"""
)


def test_penalties_behind_however_many_drafts_or_verified_tokens_are_one_kernel(
    tmp_path: pathlib.Path,
) -> None:
    assert late_kernels(PENALTIES, tmp_path) == 1


def test_every_form_of_a_kernel_compiles(tmp_path: pathlib.Path) -> None:
    assert (
        late_kernels(PROGRAM, tmp_path)
        == 3 + 3 + (6 + 1) + 2 + 2 + (1 + 3) + 2 + 2 + 2 + 1 + 3 + 3 + 2 + 1 + (3 + 2) + 2 * 3
    )


def late_kernels(text: str, tmp_path: pathlib.Path) -> object:
    program = tmp_path / "program.py"
    program.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
