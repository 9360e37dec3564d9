"""Small tokenizers of the kinds that models have, and grammars over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nanoserve.adapters import embedded
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.matchers import GrammarMatcher
from nanoserve.adapters.llguidance.vocabulary import make_vocabulary
from nanoserve.ports.grammar import BOUNDED_WHITESPACE, Constraint, new_block

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


def grammars_of(tokenizer: Tokenizer, threads: int = 2, *, padded: int = PADDED) -> LLGrammars:
    size = tokenizer.get_vocab_size()
    ends = [tokenizer.encode(END, add_special_tokens=False).ids[0]]
    vocabulary = make_vocabulary(tokenizer.to_str(), ends, size + padded)
    grammars = LLGrammars(lambda: vocabulary, num_tokens=size, threads=threads)
    grammars._filler.patience = 60  # no mask is late because a machine is slow
    return grammars


def compiled(grammars: LLGrammars, kind: str, text: str, *, compact: bool = False) -> GrammarMatcher:
    pending = grammars.compile(Constraint(kind, text, "" if compact else BOUNDED_WHITESPACE))
    while not pending.done():
        grammars.rest()
    matcher = pending.result().matcher()
    assert isinstance(matcher, GrammarMatcher)
    return matcher


def masks_of(grammars: LLGrammars, matchers: Sequence[GrammarMatcher]) -> list[bytes | None]:
    """The mask of each; None for those that are late."""
    block = new_block(grammars.vocabulary.result().vocab_size, len(matchers))
    filled = grammars.fill(matchers, block)()
    return [None if number in filled.late else bytes(block.mask(number)) for number in range(len(matchers))]


def allowed(grammars: LLGrammars, matcher: GrammarMatcher) -> set[int]:
    """The ids that may come next."""
    mask = None
    while mask is None:
        (mask,) = masks_of(grammars, [matcher])
    return {each for each in range(8 * len(mask)) if mask[each >> 3] >> (each & 7) & 1}


def accepts(matcher: GrammarMatcher, token_ids: Sequence[int]) -> bool:
    """Whether these are a whole answer."""
    return all(matcher.inner.consume_token(each) for each in token_ids) and matcher.may_end()
