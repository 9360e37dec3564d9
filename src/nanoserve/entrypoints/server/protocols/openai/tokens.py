"""`POST /inference/v1/generate`: token ids in, token ids out, in vLLM's shape. Nothing is turned into text or back."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency

from nanoserve.entrypoints.app.answer import Answer, Choice
from nanoserve.entrypoints.app.generation import Piece
from nanoserve.entrypoints.app.text_service import TextService
from nanoserve.entrypoints.server.http import fields
from nanoserve.entrypoints.server.http.bodies import documented
from nanoserve.entrypoints.server.http.field_support import harmless, only, refusing, sampling_body
from nanoserve.entrypoints.server.http.logprobs import as_id, finite
from nanoserve.entrypoints.server.http.sse import RequestContext
from nanoserve.entrypoints.server.protocols.openai import wire
from nanoserve.entrypoints.server.protocols.openai.chat import ChunkWriter
from nanoserve.ports.checks import check_logprobs
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import Api, SamplingParams
from nanoserve.ports.step import TokenLogprobs

_MAGIC_BYTES: Final = 10
_HEADER_ALIGNMENT: Final = 64


@sampling_body(Api.OPENAI)
class TokenSampling(msgspec.Struct, kw_only=True):
    """The `sampling_params`.

    Omitted ones are neutral, whatever the model's files recommend, and `max_tokens` is the rest of the context.
    """

    logprobs: int | None = None
    structured_outputs: dict[str, Any] | None = None
    detokenize: Annotated[bool | None, harmless("there is no text")] = None
    output_kind: Annotated[int | None, harmless("`stream` says it")] = None
    priority: Annotated[Any, only()] = None
    cache_salt: Annotated[Any, only()] = None


@refusing
class TokensBody(wire.AnswerBody, kw_only=True):
    """The body of `POST /inference/v1/generate`; `return_token_ids` asks for those of the prompt."""

    token_ids: list[int]
    sampling_params: TokenSampling
    return_tokens_as_token_ids: Annotated[bool | None, harmless("there are no others")] = None
    return_routed_experts: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    features: Annotated[Any, only()] = None


class ScoredId(msgspec.Struct):
    """A token at one position: by its id, and as older clients read it."""

    token_id: int
    token: str
    logprob: float
    rank: int


class ChosenId(ScoredId):
    """The token at one position of the answer, and the likeliest ones there."""

    top_logprobs: list[ScoredId]


class IdLogprobs(msgspec.Struct):
    """The log-probabilities of an answer."""

    content: list[ChosenId]


class TokensChoice(msgspec.Struct, kw_only=True):
    """One answer, or a chunk's addition to it."""

    index: int
    token_ids: list[int]
    logprobs: IdLogprobs | None = None
    finish_reason: wire.FinishName | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET
    weight_version: str | msgspec.UnsetType = msgspec.UNSET
    routed_experts: str | msgspec.UnsetType = msgspec.UNSET
    timings: wire.Timings | msgspec.UnsetType = msgspec.UNSET


class Tokens(msgspec.Struct, kw_only=True):
    """The answer of `/inference/v1/generate`."""

    id: str
    request_id: str
    object: str
    created: int
    model: str
    choices: list[TokensChoice]
    usage: wire.Usage
    prompt_logprobs: list[wire.PromptPosition] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


@post("/inference/v1/generate", status_code=200, **documented(TokensBody))
async def generate_tokens(context: NamedDependency[RequestContext]) -> Response[Tokens]:
    """Continue one prompt `n` times."""
    (body, _), service = await context.asked(TokensBody), context.service
    asked = body.sampling_params
    given = {name: value for name, (_, value) in fields.given_sampling(asked, Api.OPENAI).items()}
    for name, count in ("logprobs", asked.logprobs), ("prompt_logprobs", given.get("prompt_logprobs")):
        check_logprobs(name, count, service.facts.max_logprobs)
    routed = bool(service.facts.routed_experts)
    if body.return_routed_experts and not routed:
        message = "which experts tokens go through is not recorded; start the server with --enable-return-routed-experts"
        raise BadValueError("return_routed_experts", message)
    detokenize = bool(given.get("stop"))
    sampling = fields.read_sampling(asked, Api.OPENAI, {}, logprobs=asked.logprobs, detokenize=detokenize)
    order = fields.make_order(
        body,
        prompt=tuple(body.token_ids),
        prompt_name="token_ids",
        sampling=sampling,
        client=context.client,
        format=fields.body_format(asked),
        routed_experts=routed and body.return_routed_experts is not False,
        max_tokens_name=given.get("max_tokens") and "max_tokens",
    )
    return await context.respond(TokensWriter(body, service, sampling), [order])


class TokensWriter(ChunkWriter):
    """Writes ids."""

    _prefix = "generate-tokens"
    _kind = "generate.tokens"

    def __init__(self, body: TokensBody, service: TextService, sampling: SamplingParams) -> None:
        super().__init__(body, service, sampling.logprobs, sampling.prompt_logprobs)
        self._routed = service.facts.routed_experts

    async def add(self, answer: Answer, choice: Choice, piece: Piece) -> bytes:
        """One chunk for each piece."""
        is_first = not any(each.is_shown for each in answer.choices)
        more = self._prompt_fields(choice.generation) if is_first else {}
        return self._piece_chunk(answer, self._choice(choice, piece), **self._named, **more)

    async def whole(self, answer: Answer) -> Tokens:
        """Every choice and the usage."""
        choices = [self._choice(each, each.joined()) for each in answer.choices]
        prompt = self._prompt_fields(answer.generations[0])
        return Tokens(choices=choices, usage=self._usage(answer), **self._head, **self._named, **prompt)

    @property
    def _named(self) -> dict[str, Any]:
        return {"request_id": self._head["id"].removeprefix(f"{self._prefix}-")}

    def _choice(self, choice: Choice, piece: Piece) -> TokensChoice:
        told = self._end_fields(piece) | self._token_fields(piece)
        if self._num_logprobs is not None:
            told["logprobs"] = _chosen(piece.logprobs, self._num_logprobs)
        routed = choice.generation.routed.get(piece.index)
        if routed is not None and piece.finish_reason is not None:
            told["routed_experts"] = as_array_file(routed, self._routed)
        return TokensChoice(index=choice.index, **told)


def as_array_file(data: bytes, numbers: Sequence[int]) -> str:
    """Experts of tokens, `RoutedExperts.data`, in Base64 as numpy's file of an array [tokens, layers, experts of one] (version 1.0 of the format)."""
    layers, top, size = numbers
    shape = (len(data) // (layers * top * size), layers, top)
    described = {"descr": "|u1" if size == 1 else "<u2", "fortran_order": False, "shape": shape}
    header = str(described).encode()
    header += b" " * (-(len(header) + _MAGIC_BYTES + 1) % _HEADER_ALIGNMENT) + b"\n"
    return base64.b64encode(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data).decode()


def _chosen(scores: Sequence[TokenLogprobs], count: int) -> IdLogprobs:
    def scored(token: int, logprob: float, rank: int) -> tuple[int, str, float, int]:
        return token, as_id(token)[0], finite(logprob), rank

    return IdLogprobs(
        [
            ChosenId(
                *scored(each.token_id, each.logprob, each.rank),
                [ScoredId(*scored(*likely, rank)) for rank, likely in enumerate(each.top[:count], start=1)],
            )
            for each in scores
        ]
    )
