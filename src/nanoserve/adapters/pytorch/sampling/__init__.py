"""From logits to tokens: per-row penalties, bias, exclusions and draws, and the log-probabilities to report.

The order for one row, each part only for the rows that asked for it:

1. penalties (`penalties.py`), on the model's logits;
2. logit bias (`bias.py`);
3. exclusions (`exclusions.py`): ids outside `allowed_token_ids`, completions of bad words, ids held back until
   `min_tokens`. Where these together leave nothing, bad words and held-back ids are let go for that one token,
   and `allowed_token_ids` alone holds;
4. temperature, min-p, top-k, top-p and the draw (`kernels/sampling`); rows with temperature 0 or top_k 1 take the
   likeliest token instead and draw nothing.

Every row's outcome is a function of its own logits, settings, tokens and output position: never of its mates.
"""

from nanoserve.adapters.pytorch.sampling.logprobs import Scores, drawn_from, score_tensors
from nanoserve.adapters.pytorch.sampling.sampler import Sampler

__all__ = ["Sampler", "Scores", "drawn_from", "score_tensors"]
