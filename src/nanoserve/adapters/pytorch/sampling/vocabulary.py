"""Token ids that a row's settings name must exist."""

from __future__ import annotations

from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.step import AdmittedRow


def check_ids(admitted: AdmittedRow, vocab_size: int) -> None:
    """Look at every id that the row's settings name.

    Raises:
        StepFailedError: one lies outside the vocabulary.
    """
    sampling = admitted.sampling
    named = {
        "held_back_ids": sampling.held_back_ids,
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "bad_token_sequences": [token for each in sampling.bad_token_sequences for token in each],
    }
    for name, ids in named.items():
        outside = [token for token in ids if not 0 <= token < vocab_size]
        if outside:
            message = f"row {admitted.row}: {name} takes ids from 0 to {vocab_size - 1}, got {outside[0]}"
            raise StepFailedError(message, (admitted.row,))
