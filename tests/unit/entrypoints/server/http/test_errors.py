"""Errors: one classification, one shape, and nothing of an exception that nobody raised on purpose."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import structlog
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from nanoserve.entrypoints.server.http.errors import ErrorBody, RequestError, classify
from nanoserve.entrypoints.server.protocols.anthropic.wire import AnthropicError
from nanoserve.ports import errors
from nanoserve.ports.errors import (
    DeadlineError,
    DrainingError,
    EngineDiedError,
    EngineLoadingError,
    OverloadedError,
    UnknownModelError,
)

CASES: list[tuple[Exception, int, str, str | None]] = [
    (errors.BadValueError("top_p", "must be at most 1"), 400, "invalid_value", "top_p"),
    (errors.PromptTooLongError("long"), 400, "context_length_exceeded", None),
    (errors.RequestTooLargeError("large"), 400, "context_length_exceeded", None),
    (errors.DuplicateRequestError("twice"), 400, "request_refused", None),
    (UnknownModelError("no"), 404, "model_not_found", "model"),
    (errors.QueueFullError("full"), 503, "overloaded", None),
    (OverloadedError("full"), 503, "overloaded", None),
    (DrainingError("leaving"), 503, "draining", None),
    (EngineLoadingError("loading"), 503, "engine_loading", None),
    (DeadlineError("late"), 504, "deadline_exceeded", None),
    (EngineDiedError("died"), 500, "engine_died", None),
    (errors.StepFailedError("secret tensor"), 500, "step_failed", None),
    (errors.UnknownRequestClassError("secret class"), 500, "internal_error", None),
    (NotFoundException(), 404, "not_found", None),
    (MethodNotAllowedException(headers={"allow": "GET"}), 405, "method_not_allowed", None),
    (HTTPException(status_code=422, detail="secret"), 400, "bad_request", None),
    (HTTPException(status_code=500, detail="secret"), 500, "internal_error", None),
    (errors.NanoserveError("secret"), 500, "internal_error", None),
    (ValueError("secret"), 500, "internal_error", None),
]


@pytest.mark.parametrize(("error", "status", "code", "param"), CASES, ids=lambda each: type(each).__name__)
def test_every_error_has_its_status_and_code(
    error: Exception, status: int, code: str, param: str | None
) -> None:
    with structlog.testing.capture_logs():
        problem = classify(error)
    assert (problem.status, problem.code, problem.param) == (status, code, param)
    assert problem.kind == ("server_error" if status >= 500 else "invalid_request_error")
    assert ("retry-after" in problem.headers) == (status == 503)
    assert b"secret" not in msgspec.json.encode(ErrorBody.of(problem))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((40, 600, 512), "input length and `max_tokens` exceed context limit: 40 + 600 > 512, decrease"),
        ((600, 5, 512), "prompt is too long: 600 tokens > 512 maximum"),
        (None, "prompt is too long: any words"),
    ],
)
def test_what_does_not_fit_is_told_to_anthropics_clients_by_its_sizes(
    sizes: tuple[int, int, int] | None, told: str
) -> None:
    error = errors.PromptTooLongError("any words", sizes=sizes)
    assert AnthropicError.of(classify(error)).error.message.startswith(told)


def test_how_long_to_wait_is_what_the_error_says() -> None:
    assert classify(OverloadedError("full", retry_after=7)).headers["retry-after"] == "7"
    assert classify(OverloadedError("full", retry_after=0)).headers["retry-after"] == "1"


def test_a_bug_is_logged_with_its_traceback() -> None:
    with structlog.testing.capture_logs() as logs:
        classify(ValueError("secret"))
    assert [(each["log_level"], str(each["exc_info"])) for each in logs] == [("error", "secret")]


def test_long_messages_are_cut() -> None:
    assert len(classify(errors.BadValueError("x", "y" * 5000)).message) == 1000


def test_http_errors_carry_what_they_were_given() -> None:
    error: Any = RequestError(418, "tea", kind="pot", code="short", param="stout", headers={"x": "y"})
    problem = classify(error)
    assert (problem.status, problem.kind, problem.code, problem.param, problem.headers) == (
        418,
        "pot",
        "short",
        "stout",
        {"x": "y"},
    )
