"""`LLM`: a model and an engine in one object."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.entrypoints.app.traces.writer import check_trace_path
from nanoserve.entrypoints.app.vectors import check_scores, make_pairs, pair_score
from nanoserve.entrypoints.compose.bootstrap import assemble, trace_format
from nanoserve.entrypoints.compose.config.command_settings import TraceSettings
from nanoserve.entrypoints.compose.config.configuration import argument_settings, merge_sampling
from nanoserve.entrypoints.compose.config.setting import Sourced
from nanoserve.entrypoints.compose.recording import start_recording
from nanoserve.entrypoints.offline import outputs
from nanoserve.entrypoints.offline.session import PromptRefusedError, Session
from nanoserve.ports.driven import Message, Tokenizer
from nanoserve.ports.errors import BadValueError, NanoserveError
from nanoserve.ports.grammar import Constraint
from nanoserve.ports.pooling import PoolerSpec, Task
from nanoserve.ports.sampling import SamplingParams
from nanoserve.ports.steering import PARTS, PauseMode, WeightsFacts

Params = SamplingParams | Sequence[SamplingParams] | None
StructuredOutputs = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
Weights = str | os.PathLike[str] | Iterable[tuple[str, Any]]
LoraNames = str | Sequence[str | None] | None
FormT = TypeVar("FormT")
ReadT = TypeVar("ReadT")


class LLM:
    """Generates text or vectors from prompts, many at a time.

    Args:
        model: a folder, a GGUF file or the name of a model on the Hugging Face hub; None is the small built-in model.
        seed: makes requests that name no seed of their own reproducible.
        lora: folders of adapters, in PEFT's form, by the names that `generate` and `chat` know them by.
        trace: write the engine's step log into this file until `shutdown`, for `nanoserve inspect`; `trace_words`:
            with what is asked and answered.
        settings: any other field of `EngineSettings`, such as `dtype="float32"`, `max_model_len=4096` or `kv_memory="2GiB"`.

    None leaves a setting at its default. Raises `BadValueError`, `ModelLoadError` or `OutOfMemoryError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        lora: Mapping[str, str | os.PathLike[str]] | None = None,
        seed: int | None = None,
        trace: str | os.PathLike[str] | None = None,
        trace_words: bool = False,
        **settings: Any,
    ) -> None:
        settings["model"] = None if model is None else os.fspath(model)
        settings["lora"] = (
            ",".join(f"{name}={os.fspath(folder)}" for name, folder in (lora or {}).items()) or None
        )
        engine = argument_settings(settings)
        log = TraceSettings(trace=None if trace is None else os.fspath(trace), trace_words=trace_words)
        if log.trace is not None:
            check_trace_path(log.trace)
        assembly = assemble(engine)
        recording = start_recording(log, engine, assembly, trace_format())
        self._session: Session | None = Session(assembly, seed=seed, recording=recording)

    def generate(
        self,
        prompts: outputs.PromptForm | Sequence[outputs.PromptForm],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        structured_outputs: StructuredOutputs = None,
        lora: LoraNames = None,
    ) -> list[outputs.RequestOutput]:
        """Generate from each prompt; the outputs are in the prompts' order.

        Args:
            prompts: text, token ids, `{"prompt": ...}` or `{"prompt_token_ids": ...}`, or a list of these.
            sampling_params: for all prompts, or one per prompt; None takes the model's own defaults.
            use_tqdm: show progress where standard error is a terminal.
            priority: one number per prompt; under the priority policy the lowest runs first.
            structured_outputs: what every answer must be, or one per prompt: `{"json": schema}`, `{"json_object": True}`,
                `{"regex": text}`, `{"choice": [texts]}`, `{"grammar": text}` or `{"structural_tag": object}`.
            lora: the name of an adapter for all prompts, or one name or None per prompt.

        Raises `BadValueError`, which names the prompt's index, before anything runs. Ctrl-C aborts all requests;
        the engine stays usable.
        """
        forms = [prompts] if outputs.is_one_prompt(prompts) else _listed("prompts", prompts)
        session = self._open_session
        read = _each(forms, session.read_prompt)
        return self._run(read, sampling_params, structured_outputs, lora, priority, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        structured_outputs: StructuredOutputs = None,
        lora: LoraNames = None,
    ) -> list[outputs.RequestOutput]:
        """Answer one conversation, or each of several; otherwise as `generate`."""
        if isinstance(messages, (str, Mapping)):
            raise BadValueError("messages", f"must be a list of messages, got {type(messages).__name__}")
        listed = _listed("messages", messages)
        is_one = bool(listed) and isinstance(listed[0], Mapping)
        talks: list[Sequence[Message]] = [listed] if is_one else listed
        session = self._open_session
        read = _each(talks, session.read_conversation)
        return self._run(read, sampling_params, structured_outputs, lora, use_tqdm=use_tqdm)

    def load_lora(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Read an adapter and let prompts name it; one of the same name gives way to it. Raises `BadValueError`."""
        session = self._open_session
        facts = session.assembly.engine.read_lora(os.fspath(folder))
        session.assembly.engine.name_lora(name, facts)

    def unload_lora(self, name: str) -> None:
        """Forget an adapter. Raises `UnknownModelError`."""
        self._open_session.assembly.engine.forget_lora(name)

    def update_weights(self, source: Weights, *, partial: bool = False, label: str = "") -> WeightsFacts:
        """Compute with other weights from now on: those of a folder, or tensors by their names in a checkpoint; all of them unless `partial`.

        Raises `BadValueError`, and the old ones stay.
        """
        engine = self._open_session.assembly.engine
        wanted = os.fspath(source) if isinstance(source, str | os.PathLike) else source
        engine.weight_store.read(wanted, anew=True, partial=partial)
        digest, version = engine.weight_store.complete(), engine.steering.weights.version + 1
        engine.write_weights(WeightsFacts(version=version, digest=digest, label=label or str(version)))
        return engine.steering.weights

    def sleep(self, level: int = 1) -> None:
        """Free the memory of the KV cache, and at level 2 of the weights, until `wake_up`. Raises `BadValueError` or `ConflictError`."""
        self._open_session.assembly.engine.sleep(level)

    def wake_up(self, tags: Sequence[str] = PARTS) -> None:
        """Have memory again, for all or for the parts that are named. Raises `BadValueError`."""
        engine = self._open_session.assembly.engine
        for part in tags:
            engine.weight_store.wake(part)
        engine.note_awake(tags)

    def pause(self) -> None:
        """Refuse prompts until `resume`: they would wait, and no other thread would resume."""
        self._open_session.assembly.engine.pause(PauseMode.KEEP)

    def resume(self) -> None:
        """Take prompts again."""
        self._open_session.assembly.engine.resume()

    def embed(
        self,
        prompts: outputs.PromptForm | Sequence[outputs.PromptForm],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[outputs.EmbeddingOutput]:
        """The vector of each text, in their order.

        Args:
            prompts: as in `generate`.
            prompt_name: what the texts are, such as `query`: the model may have something to put before those.
            dimensions: the first so many numbers alone, of a model whose vectors can be cut; normalized again.
            truncate_prompt_tokens: cut longer texts to this many tokens, special ones included; None refuses what is too long.
            use_tqdm: as in `generate`.

        Raises `BadValueError`, also for a model that writes text. Ctrl-C is as in `generate`.
        """
        session = self._open_session
        pooler = session.pooler(Task.EMBED)
        pooler.check_dimensions(dimensions)
        before = pooler.prompt(prompt_name)
        found = self._pool(prompts, pooler, before, at_most=truncate_prompt_tokens, use_tqdm=use_tqdm)
        names = ("request_id", "prompt", "prompt_token_ids", "num_cached_tokens")
        return [
            outputs.EmbeddingOutput(
                embedding=pooler.vector(pooled, dimensions), **{name: getattr(output, name) for name in names}
            )
            for output, pooled in ((job.output(), pooled) for job, pooled in found)
        ]

    def classify(
        self,
        prompts: outputs.PromptForm | Sequence[outputs.PromptForm],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[outputs.ClassificationOutput]:
        """The classes of each text, in their order, by a classifier; otherwise as `embed`."""
        pooler = self._open_session.pooler(Task.CLASSIFY)
        found = self._pool(prompts, pooler, at_most=truncate_prompt_tokens, use_tqdm=use_tqdm)
        scores = [(job, pooler.scores(pooled)) for job, pooled in found]
        return [
            outputs.ClassificationOutput(
                job.request.request_id,
                list(job.prompt.token_ids),
                pooler.label(each),
                dict(zip(pooler.labels, each, strict=True)),
            )
            for job, each in scores
        ]

    def classify_tokens(
        self,
        prompts: outputs.PromptForm | Sequence[outputs.PromptForm],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[outputs.TokenClassificationOutput]:
        """The classes of each token of each text, by a classifier of tokens; otherwise as `embed`."""
        pooler = self._open_session.pooler(Task.TOKEN_CLASSIFY)
        found = self._pool(prompts, pooler, at_most=truncate_prompt_tokens, use_tqdm=use_tqdm)
        scores = [(job, [pooler.scores(each) for each in pooler.by_token(pooled)]) for job, pooled in found]
        return [
            outputs.TokenClassificationOutput(
                job.request.request_id,
                list(job.prompt.token_ids),
                [pooler.label(token) for token in each],
                [dict(zip(pooler.labels, token, strict=True)) for token in each],
            )
            for job, each in scores
        ]

    def score(
        self,
        query: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        instruction: str | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[float]:
        """Scores of how well each document answers the query, or its own query where there are as many.

        By a model that reranks it is a probability, by a classifier with one class what that makes of both texts together, by one that makes
        vectors their cosine. `instruction` says what makes a document an answer; the rest is as in `embed`.
        Raises `BadValueError`, also for a model that writes text. Ctrl-C is as in `generate`.
        """
        session = self._open_session
        pooler = check_scores(session.assembly.pooler)
        pairs = make_pairs(query, documents)
        read = [session.read_pair(pooler, *pair, instruction, truncate_prompt_tokens) for pair in pairs]
        found = session.pool(list(itertools.chain(*read)), pooler, progress=use_tqdm)
        vectors = iter([pooled for _, pooled in found])
        return [pair_score(pooler, list(itertools.islice(vectors, len(each)))) for each in read]

    def _pool(
        self,
        prompts: outputs.PromptForm | Sequence[outputs.PromptForm],
        pooler: PoolerSpec,
        before: str = "",
        *,
        at_most: int | None,
        use_tqdm: bool,
    ) -> list[tuple[outputs.PromptJob, tuple[float, ...]]]:
        forms = [prompts] if outputs.is_one_prompt(prompts) else _listed("prompts", prompts)
        session = self._open_session
        return session.pool(
            _each(forms, lambda form: session.read_text(form, before, at_most)), pooler, progress=use_tqdm
        )

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own recommendations in `generation_config.json`."""
        defaults = self._open_session.assembly.defaults
        return merge_sampling(
            {name: Sourced(value, defaults.origin) for name, value in defaults.values.items()}
        )

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._open_session.assembly.tokenizer

    def shutdown(self) -> None:
        """Let go of the model and its memory, and end the trace; may be called twice."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise NanoserveError("this LLM was shut down: create another one")
        return self._session

    def _run(
        self,
        prompts: Sequence[outputs.Prompt],
        params: Params,
        structured_outputs: StructuredOutputs,
        lora: LoraNames,
        priority: Sequence[int] | None = None,
        *,
        use_tqdm: bool,
    ) -> list[outputs.RequestOutput]:
        session, count = self._open_session, len(prompts)
        params = self.get_default_sampling_params() if params is None else params
        priorities = _listed("priority", [0] * count if priority is None else priority)
        is_one = lora is None or isinstance(lora, str)
        names = lora or "" if is_one else [each or "" for each in _listed("lora", lora)]
        asked = zip(
            prompts,
            _for_each("sampling_params", params, count, SamplingParams),
            _for_each("priority", priorities, count, int),
            _constraints(structured_outputs, count),
            _for_each("lora", names, count, str),
            strict=True,
        )
        jobs = [session.job(*each, lora=name, stream=False) for *each, name in asked]
        for _ in session.run(jobs, progress=use_tqdm):
            pass
        return [job.output() for job in jobs]


def _constraints(structured_outputs: StructuredOutputs, count: int) -> list[Constraint | None]:
    """One for each prompt; a complaint names the index."""
    if structured_outputs is None or isinstance(structured_outputs, Mapping):
        return [constraint_of(structured_outputs=structured_outputs)] * count
    each_one = _listed("structured_outputs", structured_outputs)
    if len(each_one) != count:
        message = f"must be one, or one per prompt ({count}), got {len(each_one)}"
        raise BadValueError("structured_outputs", message)
    return _each(each_one, lambda each: constraint_of(structured_outputs=each))


def _listed(name: str, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise BadValueError(name, f"must be a list, got {type(values).__name__}") from None


def _for_each(name: str, given: Any, count: int, kind: type) -> list[Any]:
    """A value of the kind for each prompt: as many as are given, or one that is given for all of them."""
    values = [given] * count if isinstance(given, kind) else _listed(name, given)
    if len(values) != count or not all(isinstance(each, kind) for each in values):
        message = (
            f"must be {kind.__name__} values, one per prompt ({count}), got {len(values)}: {values!r:.80}"
        )
        raise BadValueError(name, message)
    return values


def _each(forms: Sequence[FormT], read: Callable[[FormT], ReadT]) -> list[ReadT]:
    """Read every form; a complaint names the index."""
    found = []
    for index, form in enumerate(forms):
        try:
            found.append(read(form))
        except NanoserveError as error:
            raise PromptRefusedError(index, len(forms), error) from error
    return found
