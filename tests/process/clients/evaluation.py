"""A program: evaluates the model in the box with lm-evaluation-harness, by transformers and through a server.

`python evaluation.py URL KEY MODEL_FOLDER` runs every task in `tasks/`, which is the working folder, and prints one
JSON object: for each run the scores, and for each document what the model answered. The harness itself reads the
key from OPENAI_API_KEY, save where it asks the server for its tokenizer.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from lm_eval import simple_evaluate  # type: ignore[import-untyped]
from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

CONTEXT: Final = 1024


def evaluate(backend: str, /, **model_args: Any) -> dict[str, Any]:
    """One run of the harness over the tasks."""
    tasks = TaskManager(include_path=".", include_defaults=False)
    done = simple_evaluate(
        model=backend,
        model_args=model_args,
        tasks=sorted(tasks.all_subtasks),
        task_manager=tasks,
        bootstrap_iters=0,
        device="cpu",
    )
    assert done is not None
    return {
        "scores": {
            task: {name: score for name, score in scores.items() if name.endswith(",none")}
            for task, scores in done["results"].items()
        },
        "answers": {
            task: [each["resps"] for each in sorted(samples, key=lambda sample: sample["doc_id"])]
            for task, samples in done["samples"].items()
        },
    }


def main(url: str, key: str, folder: str) -> None:
    """Transformers first, with and without the token that begins texts; then the server in every way of asking."""
    reference = {"pretrained": folder, "dtype": "float32", "batch_size": 1, "max_length": CONTEXT}
    served = {"model": "built-in", "base_url": f"{url}/v1/completions", "max_length": CONTEXT}
    local = served | {"tokenizer_backend": "huggingface", "tokenizer": folder, "add_bos_token": True}
    results = {
        "transformers": evaluate("hf", **reference, add_bos_token=True),
        "transformers without bos": evaluate("hf", **reference, add_bos_token=False),
        "ids": evaluate("local-completions", **local, batch_size=4),
        "texts": evaluate("local-completions", **local, tokenized_requests=False, num_concurrent=4),
        "the server's tokenizer": evaluate("local-completions", **served, auth_token=key),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
