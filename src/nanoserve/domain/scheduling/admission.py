"""Admission of requests: each is checked completely and becomes sequences before it is queued."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nanoserve.domain.kv.cache import KVCache
from nanoserve.domain.kv.names import hash_root
from nanoserve.domain.scheduling.limits import Limits, Policy
from nanoserve.domain.scheduling.sequence_table import SequenceTable
from nanoserve.domain.sequence import Sequence
from nanoserve.ports import errors
from nanoserve.ports.checks import check_integer, check_logprobs, check_number, check_vocabulary
from nanoserve.ports.request import DEFERRED_CLASS, Request
from nanoserve.ports.sampling import PARAMETERS
from nanoserve.ports.step import RowSampling


def accept_request(
    request: Request, limits: Limits, cache: KVCache, table: SequenceTable, *, now: float
) -> list[Sequence]:
    """The `n` sequences of a request that arrives `now`, in order of their index. Raises a `RequestRefusedError` or a `BadValueError`."""
    if request.request_id in table.requests:
        raise errors.DuplicateRequestError(f"request {request.request_id!r} is already being served")
    check_request(request, limits, cache)
    table.waiting.check_room(request)
    priority = 0
    if limits.policy is Policy.PRIORITY:
        of_class = next(each.priority for each in limits.classes if each.name == request.request_class)
        priority = of_class + request.priority
    params, num_prompt = request.sampling, len(request.prompt_token_ids)
    lora = table.loras.digest_of(request) if request.lora else b""
    stop_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= request.eos_token_ids
    deterministic = params.deterministic and not limits.deterministic
    # A state cannot go back; a mask follows verified tokens; of what is written down none may be taken back; wide steps count tokens of each row.
    is_plain = not (cache.has_states or limits.max_width > 1)
    goes_back = is_plain and not (request.constraint or request.routed_experts)
    longest = _max_total_tokens(request, limits)
    root = hash_root(
        request,
        prefix_caching=limits.prefix_caching,
        isolated=limits.isolated,
        lora=lora,
        weights=table.weights,
        kept=limits.kv_cache_dtype,
        deterministic=deterministic,
    )
    return [
        Sequence(
            request=request,
            index=index,
            order=(request.request_class == DEFERRED_CLASS, priority, table.counters.accepted + index),
            arrived=now,
            sampling=_row_sampling(request, index, stop_ids),
            max_total_tokens=longest,
            min_total_tokens=num_prompt + params.min_tokens,
            stop_ids=stop_ids,
            token_ids=[*request.prompt_token_ids, *(request.begun[index][0] if request.begun else ())],
            hash_root=root,
            awaits_grammar=request.constraint is not None and num_prompt > 1 and is_plain,
            decode_end=longest,
            is_deterministic=deterministic,
            most_unverified=min(limits.most_unverified, limits.max_num_batched_tokens - 1) * goes_back,
            lora=lora,
        )
        for index in range(params.n)
    ]


def check_request(request: Request, limits: Limits, cache: KVCache) -> None:
    """Raise a named error if the request is malformed or could never be served."""
    length = len(request.prompt_token_ids)
    if length + (request.pooling is None) > limits.max_model_len:
        answer = ", answer included" if request.pooling is None else ""
        message = f"the prompt has {length} tokens and the context holds {limits.max_model_len}{answer}"
        raise errors.PromptTooLongError(f"{message}; shorten the prompt or raise max_model_len")
    if cache.keeps_nothing:
        _check_whole(request, limits)
    if request.request_class not in {each.name for each in limits.classes}:
        known = ", ".join(sorted(each.name for each in limits.classes))
        raise errors.UnknownRequestClassError(
            f"request class {request.request_class!r} is not configured; known: {known}"
        )
    _check_vocabulary(request, limits.vocab_size)
    if request.sampling.deterministic and not limits.deterministic and limits.not_deterministic:
        raise errors.BadValueError("deterministic", limits.not_deterministic)
    for name in ("logprobs", "prompt_logprobs"):
        check_logprobs(name, getattr(request.sampling, name), limits.max_logprobs)
    check_integer("priority", request.priority)
    for name, time in (("deadline", request.deadline), ("queue_timeout", request.queue_timeout)):
        if time is not None:
            check_number(name, time, 0.0, 1e12)
    _check_room(request, limits, cache)


def _max_total_tokens(request: Request, limits: Limits) -> int:
    budget, longest = request.sampling.max_tokens, limits.max_model_len
    if request.pooling is not None:
        return len(request.prompt_token_ids) + 1
    return longest if budget is None else min(len(request.prompt_token_ids) + budget, longest)


_SHARED: Final = [each.name for each in attrs.fields(RowSampling) if each.name in PARAMETERS]
"""Sampling parameters that a row has under the same name."""


def _row_sampling(request: Request, index: int, stop_ids: frozenset[int]) -> RowSampling:
    params = request.sampling
    values: dict[str, Any] = {name: getattr(params, name) for name in _SHARED}
    values |= {
        "seed": derive_seed(request.seed, index),
        "top_k": max(params.top_k, 0),
        "held_back_ids": tuple(sorted(stop_ids)),
        "bad_token_sequences": request.bad_token_sequences,
        "prompt_logprobs": params.prompt_logprobs if index == 0 else None,
    }
    return RowSampling(**values)


def derive_seed(seed: int, index: int) -> int:
    """The 64-bit seed of a request's sequence `index`; index 0 keeps the seed (SplitMix64, Steele et al. 2014)."""
    mask = 2**64 - 1
    if index == 0:
        return seed & mask
    mixed = (seed + index * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


def _check_whole(request: Request, limits: Limits) -> None:
    """The request is for a model without a cache."""
    if request.pooling is None:
        raise errors.BadValueError("model", "is an encoder, which writes no text: ask for vectors or classes")
    length, most = len(request.prompt_token_ids), limits.max_num_batched_tokens
    if length > most:
        message = f"the prompt has {length} tokens, is computed whole, and a step has room for {most}"
        raise errors.PromptTooLongError(f"{message}; shorten the prompt or raise max_num_batched_tokens")


def _check_room(request: Request, limits: Limits, cache: KVCache) -> None:
    total = _max_total_tokens(request, limits)
    if not fits_alone(cache, total - 1, limits.max_num_batched_tokens):
        room = limits.num_kv_blocks * limits.block_size
        message = f"prompt and answer may reach {total} tokens and the KV cache holds {room}"
        raise errors.RequestTooLargeError(f"{message}; lower max_tokens or give the cache more memory")


def fits_alone(cache: KVCache, num_tokens: int, max_chunk: int) -> bool:
    """True if a sequence of `num_tokens` computed tokens fits into an empty pool, chunk by chunk."""
    peaks = [law.peak_pages(num_tokens, max_chunk) for law in cache.laws]
    return all(peak <= pool.num_blocks for peak, pool in zip(peaks, cache.allocators, strict=True))


def _check_vocabulary(request: Request, vocab_size: int) -> None:
    if not request.prompt_token_ids:
        raise errors.BadValueError("prompt", "must hold at least one token")
    params = request.sampling
    fields = {
        "prompt": request.prompt_token_ids,
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": () if params.allowed_token_ids is None else params.allowed_token_ids,
        "logit_bias": [token for token, _ in params.logit_bias],
        "pooling": () if request.pooling is None else request.pooling.token_ids,
        "bad_words": [token for words in request.bad_token_sequences for token in words],
    }
    for name, ids in fields.items():
        check_vocabulary(name, ids, vocab_size)
