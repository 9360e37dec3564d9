"""KV events, which need an extra: opened for an engine that publishes them, checked for a router that reads them."""

from __future__ import annotations

import structlog

from nanoserve.entrypoints.compose.config import EngineSettings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.kv_events import KVEventPublisher
from nanoserve.ports.model_spec import ModelSpec


def open_kv_events(settings: EngineSettings, spec: ModelSpec) -> KVEventPublisher | None:
    """None where none are asked for. Called before anything slow, because ports are often taken. Raises `BadValueError`."""
    if settings.kv_events_port is None:
        return None
    if not settings.enable_prefix_caching:
        raise BadValueError("kv_events_port", "there are no KV events where prefix caching is off")
    check_kv_events("kv_events_port")
    from nanoserve.adapters.zmq_events import encoding, publisher  # noqa: PLC0415 - an extra

    as_arrays = settings.kv_events_format == "array"
    encoder = encoding.EventEncoder(spec.cache_groups, settings.block_size, as_arrays=as_arrays)
    place = publisher.Place(
        host=settings.kv_events_host,
        port=settings.kv_events_port,
        replay_port=settings.kv_events_replay_port,
        topic=settings.kv_events_topic or "",
    )
    made = publisher.ZmqKVEvents(place, encoder)
    made.start()
    structlog.get_logger().info("KV events", at=made.endpoint, replay=made.replay_endpoint)
    return made


def check_kv_events(setting: str) -> None:
    """Raises `BadValueError` in the name of a setting where KV events cannot be written or read."""
    try:
        import zmq  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise BadValueError(setting, "KV events need pyzmq: pip install 'nanoserve[events]'") from None
