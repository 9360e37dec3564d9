"""Settings of `nanoserve generate` that shape the prompt and the output, and of `nanoserve verify`."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.compose.config.kinds import Boolean, Integer, Number, Optional, Text
from nanoserve.entrypoints.compose.config.setting import Setting, setting, settings_of


@attrs.frozen(kw_only=True)
class GenerateSettings:
    """How prompts are understood and how answers are shown."""

    chat: bool = setting(
        False, Boolean(), "Treat the prompt as a user's message and apply the model's chat template."
    )
    system: str | None = setting(
        None, Optional(Text(), "none"), "The system message that opens the conversation; implies --chat."
    )
    stream: bool | None = setting(
        None, Optional(Boolean()), "Show the text while it grows; on for a single prompt if not given."
    )
    stats: bool = setting(False, Boolean(), "Report tokens, times and rates on standard error.")
    json: bool = setting(False, Boolean(), "Print one JSON object per prompt.")

    @property
    def is_chat(self) -> bool:
        """Whether plain prompts are messages."""
        return self.chat or self.system is not None


GENERATE_SETTINGS: Final[tuple[Setting, ...]] = settings_of(GenerateSettings, table="generate")


@attrs.frozen(kw_only=True)
class VerifySettings:
    """What is compared with transformers, and how closely."""

    tolerance: float = setting(
        1e-4,
        Number(0.0, above=True),
        "The largest error accepted, as a fraction of the reference's magnitude (at least 1).",
    )
    verify_prompt: str = setting(
        "Once upon a time there was a little fox who lived near the river.",
        Text(),
        "The prompt to compare on.",
    )
    verify_tokens: int = setting(16, Integer(low=1), "Greedy tokens to compare.")


VERIFY_SETTINGS: Final[tuple[Setting, ...]] = settings_of(VerifySettings, table="verify")
