"""Admission of requests: each is checked whole, and becomes sequences, before anything of it is queued."""

from __future__ import annotations

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.prefix_hash import hash_root
from nanoserve.domain.scheduling.limits import Limits, Policy
from nanoserve.domain.sequence import Sequence, expand
from nanoserve.ports.checks import check_integer, check_number, check_vocabulary
from nanoserve.ports.errors import (
    BadValueError,
    PromptTooLongError,
    RequestTooLargeError,
    UnknownRequestClassError,
)
from nanoserve.ports.request import Request


def check_request(request: Request, limits: Limits, cache: KVCache) -> None:
    """Raise a named error if the request is malformed or could never be served."""
    length = len(request.prompt_token_ids)
    if length >= limits.max_model_len:
        message = (
            f"the prompt has {length} tokens and the context holds {limits.max_model_len}, answer included"
        )
        raise PromptTooLongError(f"{message}; shorten the prompt or raise max_model_len")
    if request.request_class not in {each.name for each in limits.classes}:
        known = ", ".join(sorted(each.name for each in limits.classes))
        raise UnknownRequestClassError(
            f"request class {request.request_class!r} is not configured; known: {known}"
        )
    _check_vocabulary(request, limits.vocab_size)
    _check_times(request)
    _check_room(request, limits, cache)


def expand_request(request: Request, limits: Limits, arrival: int, *, now: float) -> list[Sequence]:
    """The request's sequences, with their places in the order and the root of their block hashes."""
    priority = 0
    if limits.policy is Policy.PRIORITY:
        of_class = next(each.priority for each in limits.classes if each.name == request.request_class)
        priority = of_class + request.priority
    sequences = expand(
        request, arrival=arrival, priority=priority, now=now, max_model_len=limits.max_model_len
    )
    root = hash_root(request, prefix_caching=limits.prefix_caching, isolated=limits.isolated)
    for sequence in sequences:
        sequence.hash_root = root
    return sequences


def _check_times(request: Request) -> None:
    check_integer("priority", request.priority)
    for name in ("deadline", "queue_timeout"):
        value = getattr(request, name)
        if value is not None:
            check_number(name, value, 0.0, 1e12)


def _check_room(request: Request, limits: Limits, cache: KVCache) -> None:
    budget = request.sampling.max_tokens
    total = limits.max_model_len
    if budget is not None:
        total = min(len(request.prompt_token_ids) + budget, total)
    if not cache.fits_alone(total - 1, limits.max_num_batched_tokens):
        room = limits.num_kv_blocks * limits.block_size
        message = f"prompt and answer may reach {total} tokens and the KV cache holds {room}"
        raise RequestTooLargeError(f"{message}; lower max_tokens or give the cache more memory")


def _check_vocabulary(request: Request, vocab_size: int) -> None:
    if not request.prompt_token_ids:
        raise BadValueError("prompt", "must hold at least one token")
    params = request.sampling
    fields = {
        "prompt": request.prompt_token_ids,
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": () if params.allowed_token_ids is None else params.allowed_token_ids,
        "logit_bias": [token for token, _ in params.logit_bias],
        "bad_words": [token for words in request.bad_token_sequences for token in words],
    }
    for name, ids in fields.items():
        check_vocabulary(name, ids, vocab_size)
