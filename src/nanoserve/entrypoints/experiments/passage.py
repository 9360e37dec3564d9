"""The story that the experiments' prompts are cut from."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Final

from nanoserve.ports.driven import Tokenizer

PASSAGE: Final = """\
Once upon a time a lighthouse keeper lived on a small island with her brother, a grey cat and a clock that was always
late. Every evening she climbed the stairs, lit the lamp and wrote into a book which ships had passed, how high the waves
were and what the wind had said. One evening a boat came in that she did not know. It was blue, it had no sail, and
nobody sat in it but an old fox with a wet coat. The fox asked for a bowl of soup and a place by the fire, and promised
a story for each of them. The keeper thought about it, looked at the cat, and opened the door. The first story was about
a king who counted the stars and always forgot one. The second was about a bridge that was afraid of water, and about
the girl who talked to it until it stood still. When the fire had burned down, the fox was gone, the boat was gone, and
on the table lay a key that was warm, as if somebody had held it in his hand for a very long time. The brother said that
they should throw it into the sea. The cat said nothing, as cats do, but it sat down on the key and did not move before
the morning came. Then the clock struck seven, for the first time at the right moment, and far out in the fog another
lighthouse answered, where no lighthouse had ever been.
"""


def take_tokens(count: int, tokenizer: Tokenizer) -> list[int]:
    """So many tokens of the story, which begins again at its end."""
    return list(islice(cycle(tokenizer.encode(PASSAGE, add_special_tokens=False)), count))
