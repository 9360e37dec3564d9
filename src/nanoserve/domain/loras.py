"""Adapters by name, and the device's slots for them.

A sequence keeps the adapter that its request named, by digest, until it ends, whatever becomes of the name. An adapter in use by a
row, or by a step in flight, stays in its slot; of the others, the least recently used one is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from nanoserve.domain.sequence import Sequence
from nanoserve.ports.errors import BadValueError, UnknownModelError
from nanoserve.ports.lora import LoraFacts
from nanoserve.ports.request import Request
from nanoserve.ports.step import LoraLoad


@attrs.define
class _Slot:
    """One slot and its contents.

    Attributes:
        loaded: the step that fills it; rows of later steps may use it.
        rows: how many use it; `last_step` is the newest that did.
    """

    number: int
    digest: bytes = b""
    loaded: int = 0
    rows: int = 0
    last_step: int = 0


class Loras:
    """The adapters of an engine with this many slots.

    Attributes:
        named: the adapters that requests may name.
        requests: how many requests named each of them; `loads` counts slots that were filled.
        planned: slots to be filled with the next plan.
        dropped: digests whose numbers nobody needs any more, once for each reading.
    """

    def __init__(self, num_slots: int = 0) -> None:
        self.named: dict[str, LoraFacts] = {}
        self.requests: Counter[str] = Counter()
        self.loads = 0
        self.dropped: list[bytes] = []
        # The least recently used first.
        self._slots = [_Slot(number) for number in range(1, num_slots + 1)]
        self._users: Counter[bytes] = Counter()
        self._forgotten: Counter[bytes] = Counter()
        self.planned: list[LoraLoad] = []

    @property
    def slots(self) -> Mapping[int, bytes]:
        """The digests in slots, by slot; empty ones are left out."""
        return {each.number: each.digest for each in self._slots if each.digest}

    def name(self, name: str, facts: LoraFacts) -> None:
        """Requests may name this adapter from now on; the one that had the name before is dropped when no request uses it."""
        if not self._slots:
            raise BadValueError("lora", "there are no slots for adapters; set max_loras")
        if name in self.named:
            self.forget(name)
        self.named[name] = facts

    def forget(self, name: str) -> None:
        """Remove its name; requests that use it can finish."""
        if name not in self.named:
            raise _unknown(name, self.named)
        self.requests.pop(name, None)
        digest = self.named.pop(name).digest
        self._forgotten[digest] += 1
        self._drop(digest)

    def digest_of(self, request: Request) -> bytes:
        """The adapter that a request names. Raises `UnknownModelError`."""
        if request.lora not in self.named:
            raise _unknown(request.lora, self.named)
        return self.named[request.lora].digest

    def accept(self, sequences: list[Sequence]) -> None:
        """Sequences of one request wait for their adapter."""
        self.requests[sequences[0].request.lora] += 1
        self._users[sequences[0].lora] += len(sequences)

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._users[sequence.lora] -= 1
        self._drop(sequence.lora)

    def find(self, sequence: Sequence, step: int, committed: int) -> bool:
        """Find the slot of a sequence that wants a row in a step; else False, and the slot is filled first if there is one."""
        slot = next((each for each in self._slots if each.digest == sequence.lora), None)
        if slot is None:
            # What a step in flight computes with is not touched before it is home.
            idle = (each for each in self._slots if not each.rows and each.last_step <= committed)
            slot = min(idle, key=lambda each: bool(each.digest), default=None)
            if slot is not None:
                slot.digest, slot.loaded = sequence.lora, step
                self.loads += 1
                self.planned.append(LoraLoad(slot.digest, slot.number))
                self._refresh(slot)
            return False
        sequence.lora_slot = slot.number
        return slot.loaded < step

    def seat(self, sequence: Sequence) -> None:
        """A sequence takes a row, and keeps the slot that was found."""
        slot = self._slot_of(sequence)
        slot.rows += 1
        self._refresh(slot)

    def unseat(self, sequence: Sequence, step: int) -> None:
        """A sequence gives its row back after `step`, the newest planned one."""
        slot = self._slot_of(sequence)
        slot.rows -= 1
        slot.last_step = step

    def take_planned(self) -> tuple[LoraLoad, ...]:
        """The slots to be filled with this plan."""
        planned, self.planned = tuple(self.planned), []
        return planned

    def empty_slots(self) -> None:
        """Steps were forgotten, so slots that they were to fill may be empty. No sequence has a row."""
        self.planned = []
        for slot in self._slots:
            slot.digest, slot.last_step = b"", 0

    def audit(self, running: Iterable[Sequence], alive: Iterable[Sequence]) -> str:
        """The first inconsistency; empty if there is none."""
        rows = Counter(each.lora_slot for each in running if each.lora)
        if any(slot.rows != rows[slot.number] for slot in self._slots) or rows[0]:
            return "rows and slots of adapters disagree"
        users = Counter(each.lora for each in alive if each.lora)
        if +self._users != users:
            return "an adapter is kept for a sequence that is not there, or not kept for one that is"
        if len(self.slots) != len(set(self.slots.values())):
            return "an adapter is in two slots"
        return ""

    def _slot_of(self, sequence: Sequence) -> _Slot:
        return next(each for each in self._slots if each.number == sequence.lora_slot)

    def _refresh(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        self._slots.append(slot)

    def _drop(self, digest: bytes) -> None:
        """Drop adapters without a name once no sequence needs them."""
        if not self._users[digest]:
            del self._users[digest]
            self.dropped += [digest] * self._forgotten.pop(digest, 0)


def _unknown(name: str, known: Mapping[str, object]) -> UnknownModelError:
    return UnknownModelError(f"lora: no adapter {name!r} is loaded; loaded: {', '.join(known) or 'none'}")
