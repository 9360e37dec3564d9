"""nanoserve's offline interface on a load; started by `benchmarks.generation`."""

from __future__ import annotations

from benchmarks.sides import Load, serve
from nanoserve.entrypoints.offline import LLM, SamplingParams


def main() -> None:
    """Load, warm up, time."""
    load = Load.from_arguments()
    params = SamplingParams(temperature=0.0, max_tokens=load.tokens, ignore_eos=True, detokenize=False)
    length = load.prompt_tokens + load.tokens
    with LLM(load.folder, dtype="bfloat16", max_model_len=length, max_num_seqs=load.batch) as llm:

        def generate(prompts: list[list[int]]) -> int:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

        serve(load, llm.get_tokenizer().vocab_size, generate)


if __name__ == "__main__":
    main()
