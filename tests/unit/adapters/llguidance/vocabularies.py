"""Small tokenizers of the kinds that models have, and grammars over them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nanoserve.adapters import embedded
from nanoserve.adapters.llguidance.answers import Answer, CompiledGrammar
from nanoserve.adapters.llguidance.compiling import Compiler
from nanoserve.adapters.llguidance.crew import Worker
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.vocabulary import make_vocabulary
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, Filled, MaskBlock, new_block
from tests.patience import PATIENCE
from tests.unit.adapters.llguidance.thread_crews import crew_of

END = "<|end|>"
PADDED = 40
"""Ids that the logits have beyond the vocabulary."""


def plain() -> Tokenizer:
    """The built-in model's: byte-level, with merges."""
    return Tokenizer.from_file(str(Path(embedded.__file__).parent / "model" / "tokenizer.json"))


def byte_level() -> Tokenizer:
    """Bytes alone, and added tokens of each kind."""
    made = Tokenizer(
        models.BPE(
            vocab={each: number for number, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
            merges=[],
        )
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    added = [AddedToken(END, special=True), AddedToken("[CALL]", special=True)]
    made.add_tokens([*added, AddedToken("<think>", special=False), AddedToken("    ", special=False)])
    return made


def sentencepiece(*, metaspace: bool) -> Tokenizer:
    """Pieces with a visible blank, and bytes to fall back on, which the older way of joining does not know."""
    fallback = [] if metaspace else [f"<0x{each:02X}>" for each in range(256)]
    pieces = ["<unk>", END, *fallback, "▁", "a", "b", "▁a", "ab", "▁né"]
    vocab = {each: number for number, each in enumerate(pieces)}
    made = Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=not metaspace, fuse_unk=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Metaspace() if metaspace else decoders.Sequence(steps)
    made.add_tokens([AddedToken("<unk>", special=True), AddedToken(END, special=True)])
    return made


_OWNERS = weakref.WeakKeyDictionary[CompiledGrammar, weakref.ref[LLGrammars]]()


def vocabulary_of(tokenizer: Tokenizer, *, padded: int = PADDED) -> LLTokenizer:
    ends = [tokenizer.encode(END, add_special_tokens=False).ids[0]]
    return make_vocabulary(tokenizer.to_str(), ends, tokenizer.get_vocab_size() + padded)


def compiler_of(tokenizer: Tokenizer, *, padded: int = PADDED) -> Compiler:
    return Compiler(lambda: vocabulary_of(tokenizer, padded=padded), tokenizer.get_vocab_size())


def patient(vocabulary: LLTokenizer, num_tokens: int, workers: int = 1) -> LLGrammars:
    """Grammars whose workers are threads, and no mask of which is late because a machine is slow."""
    grammars = LLGrammars(lambda: crew_of(vocabulary, num_tokens, workers), workers=workers)
    grammars.patience = grammars.draft_patience = PATIENCE
    return grammars


def grammars_of(tokenizer: Tokenizer, workers: int = 1, *, padded: int = PADDED) -> LLGrammars:
    return patient(vocabulary_of(tokenizer, padded=padded), tokenizer.get_vocab_size(), workers)


def compiled(
    grammars: LLGrammars, kind: str, text: str, *, compact: bool = False, client: str = ""
) -> Answer:
    """Tried out before, as at a door, unless a client is named."""
    pending = grammars.compile(Constraint(kind, text, "" if compact else BOUNDED_WHITESPACE), client)
    while not pending.done():
        grammars.rest()
    _OWNERS[pending] = weakref.ref(grammars)
    return pending.result().matcher()


def worker_of(grammars: LLGrammars) -> Worker:
    """The first."""
    assert grammars._workers is not None
    return grammars._workers.result()[0]


def block_for(grammars: LLGrammars, count: int) -> MaskBlock:
    """One whose masks were others before."""
    block = new_block(8 * worker_of(grammars).seats.width, count)
    block.memory[:] = b"\xff" * len(block.memory)
    return block


def filled(
    grammars: LLGrammars, matchers: Sequence[Answer], drafts: Sequence[Sequence[int]] = ()
) -> tuple[MaskBlock, Filled]:
    """Their masks, once all have grammars."""
    while not all(each.compiled or each.error for each in matchers):
        for each in matchers:
            grammars.is_ready(each)
        grammars.rest()
    block = block_for(grammars, len(matchers) + sum(map(len, drafts)))
    return block, grammars.fill(matchers, block, *([drafts] if drafts else []))()


def masks_of(grammars: LLGrammars, matchers: Sequence[Answer]) -> list[bytes | None]:
    """The mask of each; None for those that are late."""
    block, found = filled(grammars, matchers)
    return [None if number in found.late else bytes(block.mask(number)) for number in range(len(matchers))]


def allowed(grammars: LLGrammars, matcher: Answer) -> set[int]:
    """The ids that may come next."""
    (mask,) = masks_of(grammars, [matcher])
    assert mask is not None
    return {each for each in range(8 * len(mask)) if mask[each >> 3] >> (each & 7) & 1}


def error_of(grammars: LLGrammars, matcher: Answer) -> str:
    """Why no more of an answer can be said; nothing if more can."""
    _, found = filled(grammars, [matcher])
    return found.errors.get(0, "")


def accepts(matcher: Answer, token_ids: Sequence[int]) -> bool:
    """Whether these are a whole answer."""
    grammars = _OWNERS[matcher.grammar]()
    assert grammars is not None
    assert not grammars.consume([(matcher, each) for each in token_ids])
    return not error_of(grammars, matcher) and matcher.may_end()
