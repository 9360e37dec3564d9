"""Runs an example of docs/examples on a CPU, scores every sample anew with transformers, and prints what came of it as JSON.

As a program, in a process of its own: MODEL URL FOLDER CLOSE, of which the last is how close two log-probabilities are that are one.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from docs.examples.train_async_grpo import make_trainer
from tests.process.clients.trainers.stand_ins import install_kernels


@attrs.frozen
class Judged:
    """The trainer's queue; keeps each sample that is taken, with the newest policy then, and every policy's weights."""

    trainer: Any
    queue: Any
    samples: list[tuple[Any, int]] = attrs.field(factory=list)
    policies: dict[int, Any] = attrs.field(factory=dict)

    def get(self, timeout: float) -> Any:
        """As the trainer's queue, which is asked between a publication and the next optimizer step."""
        sample, version = self.queue.get(timeout=timeout), self.trainer.model_version
        if version not in self.policies:
            self.policies[version] = copy.deepcopy(get_peft_model_state_dict(self.trainer.model))
        self.samples.append((sample, version))
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


class Reference:
    """The same model in transformers, under any of the policies that were kept."""

    def __init__(self, judged: Judged, model: str) -> None:
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model: Any = PeftModel(base, judged.trainer.model.peft_config["default"])
        self._policies = judged.policies

    @torch.no_grad()
    def gaps(self, samples: Sequence[Any], version: int) -> list[torch.Tensor]:
        """Of each sample's tokens, by how much a policy's log-probabilities exceed those told. A causal model sees nothing of what fills up the rows."""
        if not samples:
            return []
        set_peft_model_state_dict(self._model, self._policies[version])
        ids = pad_sequence([torch.from_numpy(each.input_ids) for each in samples], batch_first=True)
        scores = self._model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        found = []
        for sample, row in zip(samples, scores, strict=True):
            made = torch.from_numpy(sample.completion_mask).bool()[1:]
            told = torch.from_numpy(sample.old_log_probs)[1:]
            found.append((row[: len(told)] - told)[made])
        return found

    def distances(self, samples: Sequence[Any], version: int) -> list[float]:
        """Of each sample the greatest |d logprob| of its tokens under a policy."""
        return [float(gaps.abs().max()) for gaps in self.gaps(samples, version)]


def learned(judged: Judged, reference: Reference) -> float:
    """How advantages of all samples correlate with what training has added to the samples' log-probabilities."""
    samples = [sample for sample, _ in judged.samples]
    first, last = (reference.gaps(samples, choose(judged.policies)) for choose in (min, max))
    added = [float((after - before).sum()) for before, after in zip(first, last, strict=True)]
    return statistics.correlation([sample.advantage for sample in samples], added)


def differences(judged: Judged, reference: Reference, close: float) -> list[tuple[float, int]]:
    """Of each sample the greatest |d logprob| of its tokens, and by how many versions its policy is newer than its group.

    A group has the version at which it began; a request that was sent later may name a later one. The first policy that
    predicts the sample's numbers is the one that was asked.
    """
    found = [(math.inf, 0)] * len(judged.samples)
    for version in sorted(judged.policies):
        asked = [
            place
            for place, (sample, newest) in enumerate(judged.samples)
            if sample.model_version <= version <= newest and found[place][0] >= close
        ]
        samples = [judged.samples[place][0] for place in asked]
        for place, sample, far in zip(asked, samples, reference.distances(samples, version), strict=True):
            found[place] = min(found[place], (far, version - sample.model_version))
    return found


def main(model: str, url: str, folder: str, close: str) -> None:
    """Train, judge, print."""
    install_kernels()
    torch.set_num_threads(1)
    trainer = make_trainer(model, url, folder, use_cpu=True, bf16=False)
    trainer.rollout_queue = judged = Judged(trainer, trainer.rollout_queue)
    trainer.train()
    reference = Reference(judged, model)
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    sys.stdout.write(
        json.dumps(
            {
                "rewards": [entry["reward"] for entry in history],
                "retries": sum(entry.get("rollout/vllm_retry_total", 0) for entry in history),
                "differences": differences(judged, reference, float(close)),
                "learned": learned(judged, reference),
                "foreign": reference.distances([judged.samples[0][0]], max(judged.policies))[0],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
