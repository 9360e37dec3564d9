"""The copy of pages in Triton: one piece of one page of one layer per program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pages"])
def copy_pages_kernel(pool_ptr, pairs_ptr, pages, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (pair, piece, layer): BLOCK of a page's PAGE elements."""
    source = tl.load(pairs_ptr + tl.program_id(0) * 2).to(tl.int64)
    target = tl.load(pairs_ptr + tl.program_id(0) * 2 + 1).to(tl.int64)
    elements = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    layer = tl.program_id(2).to(tl.int64) * pages
    content = tl.load(pool_ptr + (layer + source) * PAGE + elements, mask=elements < PAGE)
    tl.store(pool_ptr + (layer + target) * PAGE + elements, content, mask=elements < PAGE)
