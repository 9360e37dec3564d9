"""Plain tokenizers for tests, with the two habits of decoding that real ones have: joined bytes, and byte fallback."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nanoserve.ports.driven import Check
from tests.fakes.pooled_texts import EncodesPooled


class Pieces(EncodesPooled):
    """Token i is the i-th piece; there is nothing to encode."""

    pieces: Sequence[object]

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return ()

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True, check: Check = None
    ) -> list[int]:
        raise NotImplementedError

    def bytes_of(self, token_id: int, /) -> bytes:
        raise NotImplementedError

    def text_of(self, token_id: int, /) -> str | None:
        return None


class ByteTokenizer(Pieces):
    """Byte-level: each token is a piece of bytes, and a text is all pieces joined, then read as UTF-8."""

    def __init__(self, pieces: Sequence[bytes], special: Collection[int] = ()) -> None:
        self.pieces: list[bytes] = list(pieces)
        self.special = frozenset(special)
        self.longest_decode = 0

    def bytes_of(self, token_id: int, /) -> bytes:
        return self.decode([token_id]).encode()

    def text_of(self, token_id: int, /) -> str | None:
        text = self.pieces[token_id].decode("utf-8", errors="replace")
        return text if text and "\ufffd" not in text and token_id not in self.special else None

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        self.longest_decode = max(self.longest_decode, len(token_ids))
        kept = [token for token in token_ids if not (skip_special_tokens and token in self.special)]
        return b"".join(self.pieces[token] for token in kept).decode("utf-8", errors="replace")


class PieceTokenizer(Pieces):
    """SentencePiece-like: pieces with U+2581 for a space, and single bytes for what no piece covers.

    A run of byte tokens becomes text only if the whole run is valid UTF-8; otherwise each byte becomes U+FFFD. One
    space at the start of a decoded text is dropped.
    """

    def __init__(self, pieces: Sequence[str | int]) -> None:
        self.pieces: list[str | int] = list(pieces)

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        out: list[str] = []
        run = bytearray()
        for token in token_ids:
            piece = self.pieces[token]
            if isinstance(piece, int):
                run.append(piece)
            else:
                out += [_read(run), piece.replace("\u2581", " ")]
                run = bytearray()
        text = "".join([*out, _read(run)])
        return text.removeprefix(" ")


def _read(run: bytearray) -> str:
    try:
        return run.decode("utf-8")
    except UnicodeDecodeError:
        return "\ufffd" * len(run)


def characters(alphabet: str) -> ByteTokenizer:
    """Token i is the i-th character of the alphabet."""
    return ByteTokenizer([character.encode() for character in alphabet])
