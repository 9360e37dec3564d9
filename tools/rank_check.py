"""Two ranks over thousands of decode steps: whether both draw the same tokens in each.

    python -m tools.rank_check                                   # two GPUs, shape:llama-3.2-1b
    python -m tools.rank_check --model shape:deepseek-v2-lite --expert-parallel
    python -m tools.rank_check --model "" --device cpu --steps 200 --rows 6   # the model in the box, two processes

Requests come and go, so that the number of rows goes up and down. Exits with an error in the step in which a rank differs, and says how far it came
after so many `--seconds`. Short prompts (`--prompt 100`) and few rows make steps short.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import time
from typing import Final

from nanoserve.adapters.engine_process.ranks.leader import Ranks
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

ANSWER: Final = 200
SEED: Final = 0


def main() -> None:
    """Build the ranks, and step until enough steps are compared."""
    arguments = _arguments()
    settings = EngineSettings(
        model=arguments.model or None,
        device=arguments.device,
        tensor_parallel_size=2,
        expert_parallel=arguments.expert_parallel,
        max_model_len=1024,
        max_num_seqs=arguments.rows,
        paranoid=True,
        enable_prefix_caching=False,
    )
    began = time.monotonic()
    parts = assemble_bench(settings)
    print(f"ready after {time.monotonic() - began:.1f} s", flush=True)
    seen = Seen()
    seen.listen()
    dice, number, wanted, began = random.Random(SEED), 0, 1, time.monotonic()
    while seen.steps < arguments.steps and time.monotonic() - began < arguments.seconds:
        if dice.random() < 0.03:
            wanted = dice.choice((1, 2, arguments.rows // 2, arguments.rows - 1, arguments.rows))
        for _ in range(min(4, max(0, wanted - len(parts.engine.request_ids())))):
            parts.engine.add(_request(number, dice, parts.facts.vocab_size, arguments.prompt))
            number += 1
        before = seen.steps
        for event in parts.engine.turn():
            if isinstance(event, TokensGenerated) and event.error is not None:
                raise SystemExit(f"request {event.request_id}: {event.error}")
        if seen.steps // 1000 > before // 1000:
            print(f"{seen.steps} steps, {number} requests, {time.monotonic() - began:.1f} s", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{seen.steps} steps, {seen.tokens} tokens in {seconds:.1f} s, all equal; digest {seen.digest.hexdigest()}",
        flush=True,
    )


class Seen:
    """The ranks' comparisons.

    Attributes:
        steps: in which tokens were drawn, and `tokens`, of all of them.
        digest: of the first rank's tokens.
    """

    def __init__(self) -> None:
        self.steps = self.tokens = 0
        self.digest = hashlib.blake2b(digest_size=8)

    def listen(self) -> None:
        """Count whatever is compared from now on."""
        compare = Ranks.compare

        def counted(ranks: Ranks, step: int, token_ids: list[int]) -> None:
            compare(ranks, step, token_ids)  # raises where another rank has drawn something else
            self.steps += bool(token_ids)
            self.tokens += len(token_ids)
            self.digest.update(repr(token_ids).encode())

        Ranks.compare = counted  # type: ignore[method-assign, assignment]


def _request(number: int, dice: random.Random, vocabulary: int, longest: int) -> Request:
    prompt = tuple(dice.randrange(10, vocabulary) for _ in range(dice.randint(1, longest)))
    sampling = SamplingParams(
        temperature=dice.choice((0.0, 0.7, 1.2)),
        top_p=dice.choice((1.0, 0.9)),
        presence_penalty=dice.choice((0.0, 0.4)),
        max_tokens=dice.randint(1, ANSWER),
        ignore_eos=True,
    )
    return Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, seed=number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="shape:llama-3.2-1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=700, help="tokens of the longest prompt")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--expert-parallel", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
