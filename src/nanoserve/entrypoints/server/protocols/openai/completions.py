"""`POST /v1/completions`: texts that continue prompts, several at a time, with the prompts before them where asked for."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final, cast

import attrs
import msgspec
from litestar import Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answer import Answer, Choice, TokenOffsets
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.logprobs import TokenText, finite
from nanoserve.entrypoints.server.http.sse import RequestContext, TextFrames
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.entrypoints.server.protocols.openai.chat import ChunkWriter
from nanoserve.ports.checks import check_logprobs, shown
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import Api, SamplingParams
from nanoserve.ports.step import TokenLogprobs

_LEGACY_MAX_TOKENS: Final = 16


@post("/v1/completions", status_code=200, **documented(wire.CompletionBody))
async def completions(context: NamedDependency[RequestContext]) -> Response[wire.Completion]:
    """Continue each prompt `n` times; the choices of prompt p have the indices p * n to p * n + n - 1."""
    (body, _), service = await context.asked(wire.CompletionBody), context.service
    sampling, drops_output = completion_sampling(body, service)
    service.check_count(count_prompts(body.prompt))
    prompts = read_prompts(body.prompt)
    answer_format = fields.body_format(body)
    orders = [
        fields.make_order(
            body,
            prompt=each,
            prompt_name="prompt",
            sampling=sampling,
            client=context.client,
            format=answer_format,
        )
        for each in prompts
    ]
    is_cut = body.truncate_prompt_tokens is not None
    texts = [each if isinstance(each, str) and not is_cut else None for each in prompts]
    writer = CompletionWriter(body, service, sampling, texts, drops_output=drops_output)
    return await context.respond(writer, orders)


def completion_sampling(body: wire.CompletionBody, service: TextService) -> tuple[SamplingParams, bool]:
    """Read a completion body's sampling parameters; raises `BadValueError`.

    True with them where nothing was to be generated (`max_tokens: 0`): an engine has to generate at least one token.
    """
    given = fields.check_openai(body)
    if body.top_logprobs is not None:
        raise BadValueError("top_logprobs", "belongs to chat; a completion's `logprobs` is a number")
    most = service.facts.max_logprobs
    check_logprobs("logprobs", body.logprobs, most)
    max_tokens, prompt_logprobs = given.get("max_tokens"), given.get("prompt_logprobs")
    check_logprobs("prompt_logprobs", prompt_logprobs, most)
    drops_output = max_tokens == 0
    if drops_output:
        _check_nothing_to_generate(given, echo=bool(body.echo))
        max_tokens = 1
    scored = prompt_logprobs
    if body.echo and body.logprobs is not None:
        scored = max(body.logprobs, prompt_logprobs or 0)
    sampling = fields.read_sampling(
        body,
        Api.OPENAI,
        service.settings.defaults,
        max_tokens=_LEGACY_MAX_TOKENS if max_tokens is None else max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=scored,
    )
    return sampling, drops_output


def _check_nothing_to_generate(given: dict[str, Any], *, echo: bool) -> None:
    if not echo:
        raise BadValueError("max_tokens", "must be at least 1; 0 needs `echo: true`")
    if given.get("min_tokens"):
        raise BadValueError("min_tokens", f"must be at most max_tokens (0), got {given['min_tokens']}")


PromptInput = str | tuple[int, ...]


def count_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> int:
    """The number of prompts, as the first element shows; read before all of them are."""
    return 1 if isinstance(prompt, str) or not prompt or isinstance(prompt[0], int) else len(prompt)


def read_prompts(
    prompt: str | Sequence[str | int | Sequence[int]], name: str = "prompt"
) -> list[PromptInput]:
    """A text, token ids, a list of texts or a list of token-id lists; raises `BadValueError`."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadValueError(name, "is empty; give a text or token ids")
    if set(map(type, prompt)) == {int}:
        return [tuple(cast("Sequence[int]", prompt))]
    return [_read_one(each, place, name) for place, each in enumerate(prompt)]


def _read_one(form: str | int | Sequence[int], place: int, name: str) -> PromptInput:
    if isinstance(form, int):
        raise BadValueError(name, f"mixes token ids and texts: element {place} is {shown(form)}")
    return form if isinstance(form, str) else tuple(form)


class CompletionWriter(ChunkWriter):
    """Writes texts that continue prompts; `texts` are those prompts, None if one came as ids or was cut."""

    _prefix = "cmpl"
    _kind = "text_completion"

    def __init__(
        self,
        body: wire.CompletionBody,
        service: TextService,
        sampling: SamplingParams,
        texts: Sequence[str | None],
        *,
        drops_output: bool,
    ) -> None:
        scored = fields.given_sampling(body, Api.OPENAI).get("prompt_logprobs")
        super().__init__(body, service, body.logprobs, None if scored is None else scored[1])
        self._service = service
        self._echo = bool(body.echo)
        self._drops_output = drops_output
        self._skip = sampling.skip_special_tokens
        self._texts = texts
        self._echoes: dict[int, tuple[str, wire.CompletionLogprobs | None]] = {}
        self._offsets: dict[int, TokenOffsets] = {}
        self._frames = TextFrames(
            lambda index, text: self._chunk([wire.CompletionChoice(index=index, text=text)])
        )

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece."""
        if self._text_is_all and choice.is_shown and piece.text and piece.finish_reason is None:
            return self._frames.of(choice.index, piece.text)
        return self._piece_chunk(answer, await self._choice(choice, piece))

    async def whole(self, answer: Answer) -> wire.Completion:
        """Every choice and the usage."""
        choices = [await self._choice(each, each.joined()) for each in answer.choices]
        return wire.Completion(choices=choices, usage=self._usage(answer), **self._head)

    def _usage(self, answer: Answer) -> wire.Usage:
        """A token that was generated only because an engine cannot generate none does not count."""
        if not self._drops_output:
            return super()._usage(answer)
        prompt = answer.num_prompt_tokens
        return wire.Usage(prompt, 0, prompt, wire.PromptTokensDetails(answer.num_cached_tokens))

    async def _choice(self, choice: Choice, piece: Piece) -> wire.CompletionChoice:
        """The first one brings the prompt where it is to be repeated."""
        if self._drops_output:
            piece = _without_output(piece)
        text, scored = await self._prompt_of(choice) if self._echo else ("", None)
        logprobs = await self._logprobs(choice, piece, start=len(text))
        told = self._end_fields(piece)
        if choice.is_shown:
            return wire.CompletionChoice(index=choice.index, text=piece.text, logprobs=logprobs, **told)
        if scored is not None and logprobs is not None:
            both = map(operator.add, msgspec.structs.astuple(scored), msgspec.structs.astuple(logprobs))
            logprobs = wire.CompletionLogprobs(*both)
        told |= self._prompt_fields(choice.generation)
        return wire.CompletionChoice(index=choice.index, text=text + piece.text, logprobs=logprobs, **told)

    async def _logprobs(self, choice: Choice, piece: Piece, start: int) -> wire.CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        if choice.index not in self._offsets:
            prompt = choice.generation.prompt_token_ids
            self._offsets[choice.index] = TokenOffsets(
                self._service.tokenizing, prompt, skip_special_tokens=self._skip
            )
        placed = await self._offsets[choice.index].place(piece.token_ids)
        offsets = [start + each for each in placed]
        return legacy_logprobs(
            piece.token_ids, piece.logprobs, offsets, self._num_logprobs, self._shown_token
        )

    async def _prompt_of(self, choice: Choice) -> tuple[str, wire.CompletionLogprobs | None]:
        """The prompt's text and its tokens' log-probabilities."""
        generation = choice.generation
        number = choice.index // generation.num_sequences
        if number not in self._echoes:
            ids, scores, logprobs = generation.prompt_token_ids, generation.prompt_logprobs, None
            text = self._texts[number]
            if text is None:
                text = await self._service.decode(ids, skip_special_tokens=self._skip)
            if self._num_logprobs is not None and scores is not None:
                placed = await TokenOffsets(self._service.tokenizing, skip_special_tokens=self._skip).place(
                    ids
                )
                offsets = [min(each, len(text)) for each in placed]
                logprobs = legacy_logprobs(ids, scores, offsets, self._num_logprobs, self._shown_token)
            self._echoes[number] = text, logprobs
        return self._echoes[number]


def _without_output(piece: Piece) -> Piece:
    """The end of an answer of no tokens: its only token, and why that one ended, are not shown."""
    reason = piece.finish_reason
    if reason in {FinishReason.STOP, FinishReason.LENGTH}:
        reason = FinishReason.LENGTH
    return attrs.evolve(piece, token_ids=(), text="", logprobs=(), finish_reason=reason, stop=None)


def legacy_logprobs(
    token_ids: Sequence[int],
    scores: Sequence[TokenLogprobs | None],
    offsets: Sequence[int],
    count: int,
    text: TokenText,
) -> wire.CompletionLogprobs:
    """Four parallel lists; a token that nothing precedes has a null in two of them."""
    return wire.CompletionLogprobs(
        text_offset=list(offsets),
        token_logprobs=[None if each is None else finite(each.logprob) for each in scores],
        tokens=[text(token) for token in token_ids],
        top_logprobs=[None if each is None else _by_text(each, count, text) for each in scores],
    )


def _by_text(score: TokenLogprobs, count: int, text: TokenText) -> dict[str, float]:
    """By text, the actual token always among them; of tokens that look alike the likeliest."""
    found: dict[str, float] = {}
    for token, logprob in (*score.top[:count], (score.token_id, score.logprob)):
        found.setdefault(text(token), finite(logprob))
    return found
