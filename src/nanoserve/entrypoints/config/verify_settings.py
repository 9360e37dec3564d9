"""Settings of `nanoserve verify`."""

from __future__ import annotations

from typing import Final

import attrs

from nanoserve.entrypoints.config.kinds import Integer, Number, Text
from nanoserve.entrypoints.config.setting import Setting, setting, settings_of


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
