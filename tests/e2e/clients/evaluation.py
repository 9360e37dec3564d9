"""A program: evaluates the model in the box with lm-evaluation-harness, by transformers and through a server.

`python evaluation.py URL KEY MODEL_FOLDER` runs every task in `tasks/`, which is the working folder, and prints one
JSON object: for each run the scores, and for each document what the model answered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final

CONTEXT: Final = 1024


def evaluate(backend: str, /, **model_args: Any) -> dict[str, Any]:
    """One run of the harness over the tasks."""
    import lm_eval  # noqa: PLC0415 - reads the environment that `main` has set
    import lm_eval.tasks  # noqa: PLC0415

    tasks = lm_eval.tasks.TaskManager(include_path=".", include_defaults=False)
    done = lm_eval.simple_evaluate(
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
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": key}
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
