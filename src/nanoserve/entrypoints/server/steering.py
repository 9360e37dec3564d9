"""Routes by which a trainer steers the engine, under vLLM's names; the operator turns them on.

They change every client's answers, so they can have a key of their own. Without one they are for programs of this machine alone:
no page in a browser may call them, because its request names its origin.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Final, Literal

import attrs
import msgspec
import structlog
from litestar import HttpMethod, Request, get, post, route
from litestar.di import NamedDependency
from litestar.params import FromQuery

from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.server.http.bodies import only_query, read_body
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.loras import folder_below
from nanoserve.entrypoints.server.watch.about import get_world_size, reset_prefix_cache, server_info
from nanoserve.entrypoints.server.watch.health import Health
from nanoserve.ports.driving import EngineClient
from nanoserve.ports.engine_link import Pause, ReadWeights, Resume, Sleep, WakeUp, WriteWeights
from nanoserve.ports.errors import BadValueError, ConflictError, DrainingError
from nanoserve.ports.steering import HANDLE_BYTES, PARTS, PauseMode, SharedTensor

Engine = NamedDependency[EngineClient]
ServerHealth = NamedDependency[Health]
_MODES: Final = ", ".join(each.value for each in PauseMode)


@post("/pause", status_code=200, include_in_schema=False, guards=[only_query("mode", "clear_cache")])
async def pause(
    engine: Engine,
    health: ServerHealth,
    mode: FromQuery[str] = "abort",
    clear_cache: FromQuery[bool] = True,
) -> dict[str, str]:
    """Answers once nothing runs any more; requests that come now wait. Blocks that are kept stay, whatever `clear_cache` says."""
    _check_staying(health)
    try:
        wanted = PauseMode(mode)
    except ValueError:
        raise BadValueError("mode", f"must be one of {_MODES}, got {mode[:64]!r}") from None
    found = await engine.steer(Pause(wanted, clear_cache and wanted is not PauseMode.KEEP))
    if not found.paused:
        raise ConflictError("another client resumed the engine before the pause was complete; pause it again")
    structlog.get_logger().info("the engine was paused", mode=mode)
    return {"status": "paused"}


def _check_staying(health: Health) -> None:
    """Raises `DrainingError` if the server drains, because running requests would wait for ever."""
    if health.is_draining:
        raise DrainingError("the server is shutting down, and finishes what it has accepted", retry_after=5)


@post("/resume", status_code=200, include_in_schema=False, guards=[only_query()])
async def resume(engine: Engine) -> dict[str, str]:
    """Requests that waited are computed."""
    await engine.steer(Resume())
    structlog.get_logger().info("the engine was resumed")
    return {"status": "resumed"}


@get("/is_paused", include_in_schema=False)
async def is_paused(engine: Engine) -> dict[str, bool]:
    """True from the moment at which a pause is asked for."""
    return {"is_paused": engine.steering.paused}


ABANDONED: Final = 60.0
"""Seconds after which an update without requests gives way to the next one."""


def check_access(access: AccessSettings, *, max_loras: int) -> None:
    """Raise `BadValueError` for a setting of trainers that lacks another one."""
    for name in ("steering_key", "weight_dir"):
        if getattr(access, name) and not access.steering:
            raise BadValueError(name, "is for trainers; give --steering too")
    for name in ("weight_dir", "lora_dir"):
        folder = getattr(access, name)
        if folder is not None and not pathlib.Path(folder).is_dir():
            raise BadValueError(name, f"is not a folder: {folder}; create it first")
    if access.lora_dir is not None and not max_loras:
        raise BadValueError("lora_dir", "needs slots for adapters; give --max-loras too")


_NO_FOLDER: Final = "no folder is allowed; start the server with --weight-dir FOLDER"


class WeightTransfer:
    """The update of an engine's weights that is open, if there is one, from folders below `allowed`."""

    def __init__(self, engine: EngineClient, allowed: str | None, now: Callable[[], float]) -> None:
        self.lock = asyncio.Lock()
        self._engine = engine
        self._allowed = None if allowed is None else pathlib.Path(allowed).resolve()
        self._now = now
        self._last: float | None = None
        self._next = ReadWeights("")

    def check(self) -> None:
        """Raise `BadValueError` if weights can never be updated."""
        if self._allowed is None and not self.on_gpu:
            raise BadValueError("weight_dir", _NO_FOLDER)

    def start(self, *, partial: bool) -> None:
        """Open an update. Raises `ConflictError` while another one is open, and the errors of `check`."""
        self.check()
        if self.lock.locked() or (self._last is not None and self._now() - self._last < ABANDONED):
            raise ConflictError("another update is open; finish it, or wait a minute until it is given up")
        self._last, self._next = self._now(), ReadWeights("", partial=partial)

    @property
    def on_gpu(self) -> bool:
        """True if the engine can open a trainer's memory."""
        facts = self._engine.facts
        return facts is not None and facts.device == "cuda"

    async def read(self, source: str | tuple[SharedTensor, ...]) -> None:
        """Read one more folder, or some tensors; an error ends the update."""
        async with self.lock:
            order = self._take()
            if not isinstance(source, str):
                order = attrs.evolve(order, folder="", tensors=source)
            elif self._allowed is None:
                raise BadValueError("weight_dir", _NO_FOLDER)
            else:
                folder = str(folder_below(self._allowed, source, "weight_dir"))
                order = attrs.evolve(order, folder=folder, tensors=())
            await self._engine.steer(order)
            self._last, self._next = self._now(), attrs.evolve(order, anew=False)

    async def finish(self, body: TransferBody) -> None:
        """Give the engine the weights that were read, under the name in the body.

        Raises `ConflictError` if that cannot be now, as while requests run; the update stays open.
        """
        async with self.lock:
            if self._last is not None and self._next.anew:
                raise ConflictError("nothing was read yet; POST /update_weights first, the update stays open")
            read = self._take()
            try:
                await self._engine.steer(WriteWeights(body.weight_version or body.weight_label or ""))
            except ConflictError:
                self._last, self._next = self._now(), read
                raise
        label = self._engine.steering.weights.label
        structlog.get_logger().info("the weights were updated", weights=label)

    @property
    def info(self) -> WeightInfo:
        """The engine's weights as they are now."""
        found = self._engine.steering
        weights = found.weights
        return WeightInfo(weights.label, weights.version, weights.digest, found.lost or None)

    def give_up(self) -> None:
        """Let the next update begin at once."""
        self._last = None

    def _take(self) -> ReadWeights:
        if self._last is None:
            raise ConflictError("no update is open; POST /start_weight_update first")
        self._last = None
        return self._next


class TransferBody(msgspec.Struct, kw_only=True):
    """The bodies of the routes that update weights; each reads its own fields."""

    init_info: dict[str, Any] = {}
    update_info: dict[str, Any] = {}
    weight_dir: str | None = None
    is_checkpoint_format: bool = True
    partial: bool = False
    weight_version: str | None = None
    weight_label: str | None = None


class WeightInfo(msgspec.Struct):
    """Which weights requests are computed with; `lost` says why those before cannot be, after the death of an engine."""

    weight_version: str
    version: int
    digest: str
    lost: str | None = None


Asked = NamedDependency[TransferBody]
Transfer = NamedDependency[WeightTransfer]


async def transfer_body(request: Request[Any, Any, Any]) -> TransferBody:
    """The body of a request, which may have none; for injection into handlers."""
    return await read_body(request, TransferBody) if await request.body() else TransferBody()


@post("/init_weight_transfer_engine", status_code=200, include_in_schema=False)
async def init_weight_transfer_engine(asked: Asked, transfer: Transfer) -> dict[str, str]:
    """Folders and handles need nothing; arguments that only NCCL needs are refused."""
    _refuse_others("init_info", asked.init_info, ())
    transfer.check()
    return {"message": "Weight transfer initialized"}


@post("/start_weight_update", status_code=200, include_in_schema=False)
async def start_weight_update(asked: Asked, transfer: Transfer) -> dict[str, str]:
    """Open an update of all weights, or with `partial` of those that are sent."""
    if not asked.is_checkpoint_format:
        raise BadValueError("is_checkpoint_format", "must be true: tensors have their names in a checkpoint")
    transfer.start(partial=asked.partial)
    return {"message": "Weight update started"}


@post("/update_weights", status_code=200, include_in_schema=False)
async def update_weights(asked: Asked, transfer: Transfer) -> dict[str, str]:
    """Read a folder, or tensors by handles, and check it; `weight_dir` outside of `update_info` is a whole update in one call."""
    if asked.weight_dir is not None:
        transfer.start(partial=asked.partial)
        try:
            await transfer.read(asked.weight_dir)
            await transfer.finish(asked)
        finally:
            transfer.give_up()
        return {"message": "Weights updated"}
    if "ipc_handles" in asked.update_info:
        if not transfer.on_gpu:
            raise BadValueError("update_info.ipc_handles", "are for an engine on a GPU; send a weight_dir")
        await transfer.read(_shared(asked.update_info))
        return {"message": "Weights updated"}
    _refuse_others("update_info", asked.update_info, ("weight_dir",))
    folder = asked.update_info.get("weight_dir")
    if not isinstance(folder, str):
        raise BadValueError("update_info.weight_dir", "must name a folder of safetensors files")
    await transfer.read(folder)
    return {"message": "Weights updated"}


@post("/finish_weight_update", status_code=200, include_in_schema=False)
async def finish_weight_update(asked: Asked, transfer: Transfer) -> WeightInfo:
    """From now on, compute with all weights that were read, or with none after an error."""
    await transfer.finish(asked)
    return transfer.info


@get("/weight_info", include_in_schema=False)
async def weight_info(transfer: Transfer) -> WeightInfo:
    """Version 0 has the weights of the start."""
    return transfer.info


def _refuse_others(field: str, info: Mapping[str, Any], known: Collection[str]) -> None:
    others = sorted(info.keys() - known)
    if others:
        message = "is not served: weights come from folders of safetensors files below --weight-dir or by ipc_handles, not by NCCL or pickles"
        raise BadValueError(f"{field}.{others[0][:64]}", message)


class SharedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tensors in a trainer's GPU memory; handles in Base64, offsets in bytes from where each one's allocation begins."""

    names: list[str]
    dtype_names: list[Literal["float32", "bfloat16", "float16"]]
    shapes: list[list[Annotated[int, msgspec.Meta(ge=0)]]]
    ipc_handles: list[Annotated[bytes, msgspec.Meta(min_length=HANDLE_BYTES, max_length=HANDLE_BYTES)]]
    offsets: list[Annotated[int, msgspec.Meta(ge=0)]]


def _shared(info: Mapping[str, Any]) -> tuple[SharedTensor, ...]:
    try:
        body = msgspec.convert(info, SharedBody)
        columns = (body.names, body.dtype_names, map(tuple, body.shapes), body.ipc_handles, body.offsets)
        found = tuple([SharedTensor(*each) for each in zip(*columns, strict=True)])
    except ValueError as error:
        raise BadValueError("update_info", f"has lists of one length for all tensors: {error}") from None
    if not found:
        raise BadValueError("update_info", "has no tensors")
    return found


@post("/sleep", status_code=200, include_in_schema=False, guards=[only_query("level")])
async def sleep(engine: Engine, health: ServerHealth, level: FromQuery[int] = 1) -> dict[str, bool]:
    """Free memory once no step is in flight; requests wait, and are computed again from their beginning."""
    _check_staying(health)
    await engine.steer(Sleep(level))
    structlog.get_logger().info("the engine sleeps", level=level)
    return {"is_sleeping": True}


@post("/wake_up", status_code=200, include_in_schema=False, guards=[only_query("tags", repeats=True)])
async def wake_up(engine: Engine, tags: FromQuery[list[str] | None] = None) -> dict[str, bool]:
    """Have memory again, for all or for the parts that are named; requests are computed once all are awake."""
    if unknown := sorted({*(tags or ())} - {*PARTS}):
        raise BadValueError("tags", f"must be of {', '.join(PARTS)}, got {unknown[0][:64]!r}")
    found = await engine.steer(WakeUp(tuple(tags or PARTS)))
    structlog.get_logger().info("the engine woke up", asleep=found.asleep)
    return {"is_sleeping": bool(found.asleep)}


@get("/is_sleeping", include_in_schema=False)
async def is_sleeping(engine: Engine) -> dict[str, bool]:
    """True until all parts are awake."""
    return {"is_sleeping": bool(engine.steering.asleep)}


SHARED: Final = frozenset(server_info.paths | get_world_size.paths)
"""Paths that the steering key reads too."""
ROUTES: Final = (
    *(sleep, wake_up, is_sleeping),
    *(pause, resume, is_paused, reset_prefix_cache),
    *(init_weight_transfer_engine, start_weight_update, update_weights, finish_weight_update, weight_info),
)
PATHS: Final = frozenset(path for each in ROUTES for path in each.paths)


@route(sorted(PATHS), http_method=(HttpMethod.GET, HttpMethod.POST), status_code=404, include_in_schema=False)
async def turned_off(request: Request[Any, Any, Any]) -> None:
    """Says how to turn them on."""
    raise RequestError(
        404,
        f"{request.scope['path']} is for trainers, and turned off: start the server with --steering.",
        code="steering_off",
    )
