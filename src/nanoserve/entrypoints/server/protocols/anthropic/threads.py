"""Threads of `/v1/messages`: conversations that the server keeps, so that a client sends only new messages.

As in Anthropic's beta of that name: `{"type": "create"}` keeps a conversation under the id of its answer, and `{"type": "continue",
"previous_message_id": id}` continues from there, with the system prompt and the tools that it was created with. An answer may be
continued more than once here, so a request that is sent again needs no new thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import msgspec

from nanoserve.entrypoints.app.answer import Part
from nanoserve.entrypoints.app.conversation_store import ConversationStore, Record
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.protocols.anthropic.wire import ContentBlock, CreateMessage, MessageParam
from nanoserve.entrypoints.server.protocols.anthropic.writer import block_of
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

_BETA: Final = "message-threads-2026-08-12"
_PREFIX: Final = b"message-threads-"
_HEADER: Final = b"anthropic-beta"
_PER_RECORD: Final = 400
"""Bytes of the objects around a thread's texts, about."""
_read_messages = msgspec.json.Decoder(list[MessageParam]).decode


class _Fixed(msgspec.Struct):
    """The fields that all requests of a thread share."""

    system: str | list[ContentBlock] | None
    tools: list[dict[str, Any]] | None


@attrs.define(eq=False, kw_only=True)
class Thread(Record):
    """A conversation up to an answer, that included: lists of messages as JSON, oldest first and shared with threads that go on, and what is `fixed`."""

    said: tuple[bytes, ...]
    fixed: bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of its texts, shared ones included: an over-estimate keeps the bound."""
        return _PER_RECORD + len(self.fixed) + sum(map(len, self.said))


def is_of_thread(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if a request may have a `thread`: Anthropic's clients send the name of the beta with it."""
    return any(name == _HEADER and _PREFIX in value for name, value in headers)


class Threading:
    """The thread of one request, if it has one; `body` is the request as one for the whole conversation."""

    def __init__(
        self,
        body: CreateMessage,
        *,
        is_announced: bool,
        owner: str,
        store: ConversationStore,
        max_bytes: int,
    ) -> None:
        """`max_bytes`: of the kept messages, when a thread is continued."""
        self.body = body
        self._sent = body.messages
        self._owner, self._store = owner, store
        self._before: Thread | None = None
        asked = body.thread
        if asked is None:
            return
        if not is_announced:
            raise BadValueError("thread", f"needs the header anthropic-beta: {_BETA}")
        if (asked.type == "continue") != (asked.previous_message_id is not None):
            raise BadValueError("thread.previous_message_id", "goes with the type continue, which needs it")
        if asked.previous_message_id is not None:
            self._before = self._find(asked.previous_message_id)
            # A small request must not have more read than a body may have.
            if self._before.num_bytes > max_bytes:
                message = f"thread: holds more than the {max_bytes} bytes that a body may have"
                raise RequestError(413, f"{message}; create one from less", code="body_too_large")
            self.body = _continued(body, self._before)

    def keep(self, message_id: str, parts: Sequence[Part]) -> None:
        """Keep the conversation with its answer."""
        reply = {"role": "assistant", "content": [block_of(each) for each in parts]}
        before = self._before
        said = msgspec.json.encode([*self._sent, reply])
        fixed = msgspec.json.encode(_Fixed(self.body.system, self.body.tools))
        thread = Thread(
            record_id=message_id,
            said=(said,) if before is None else (*before.said, said),
            fixed=fixed if before is None else before.fixed,
        )
        self._store.put(self._owner, thread)

    def _find(self, message_id: str) -> Thread:
        thread = self._store.find(self._owner, message_id, Thread)
        if thread is None:
            fate = self._store.fate(self._owner, message_id)
            message = f"the thread up to {shown(message_id)} {fate}; create one from the whole conversation"
            raise RequestError(404, f"thread.previous_message_id: {message}", code="thread_not_found")
        return thread


def _continued(body: CreateMessage, thread: Thread) -> CreateMessage:
    """The request with all earlier messages; raises `RequestError` if it changes a fixed field."""
    fixed = msgspec.json.decode(thread.fixed, type=_Fixed)
    for name in _Fixed.__struct_fields__:
        if getattr(body, name) not in (None, getattr(fixed, name)):
            message = f"{name}: is not what the thread was created with; leave it out, or create a thread"
            raise RequestError(400, message, code="thread_fingerprint_mismatch")
    earlier = [message for said in thread.said for message in _read_messages(said)]
    return msgspec.structs.replace(
        body, messages=[*earlier, *body.messages], system=fixed.system, tools=fixed.tools
    )
