"""The arguments of the application, `name=value` each, and the file for `serve deploy` that holds them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs

from nanoserve.entrypoints.compose.config.configuration import TABLES, read_configuration, settings_of
from nanoserve.entrypoints.compose.config.kinds import integer, number, one_of
from nanoserve.entrypoints.compose.config.serve_settings import BatchSettings
from nanoserve.entrypoints.compose.config.setting import optional, setting
from nanoserve.entrypoints.server.serving import Serving
from nanoserve.ports.errors import BadValueError
from nanoserve_cluster.domain.routing.policies import POLICIES

APP: Final = "nanoserve_cluster.entrypoints.ray:app"


@attrs.frozen(kw_only=True)
class RaySettings:
    """Ray's part of the arguments: how many replicas, with which resources, and how requests reach them."""

    TABLE: ClassVar = "ray"
    replicas: int = setting(1, integer(low=1), "Replicas of the model; where they scale, the fewest.")
    max_replicas: int | None = optional(integer(low=1), "Scale by load up to so many replicas.")
    upscale_delay: float = setting(
        30.0, number(0.0), "Seconds that more load must last before replicas are added."
    )
    downscale_delay: float = setting(
        600.0, number(0.0), "Seconds that less load must last before replicas are taken away."
    )
    max_surge_percent: int = setting(
        0,
        integer(0, 100),
        "Replicas that there may be beyond their number while they are replaced; with 0 an old one ends before a new one "
        "starts, which needs no room but leaves a single replica's clients waiting.",
    )
    num_cpus: float = setting(1.0, number(0.0), "CPUs that Ray sets aside for a replica.")
    num_gpus: float | None = optional(
        number(0.0),
        "GPUs that Ray sets aside for a replica; if not given, as many as its tensor-parallel size where there are GPUs.",
        word="auto",
    )
    router_policy: str = setting("lmetric", one_of(*POLICIES), "The router policy.")
    routers: int = setting(
        1, integer(low=1), "Routers, each on its own machine; they know nothing of each other."
    )
    direct_port: int | None = optional(
        integer(0, 65535),
        "Routers answer on this port of their machine too, so that requests need not pass Ray's proxy.",
    )


_OF_ONE_SERVER: Final = ("trace", "kv_events_port", "kv_events_replay_port")
"""A file and ports that the replicas of one machine would all take."""
_NOT_PASSED_ON: Final = {
    *("host", "port", "uds", "admin_uds", "metrics_port", "in_process"),
    *_OF_ONE_SERVER,
    *("trace_limit", "kv_events_host", "kv_events_topic", "kv_events_format"),
}
"""Where a replica listens is Ray's business."""
_OWN: Final = {each.name: each for each in settings_of(RaySettings)}
_SERVING: Final = {*TABLES[""], *TABLES["serve"]} - {BatchSettings}
_PASSED_ON: Final = {each.name for declared in _SERVING for each in settings_of(declared)} - _NOT_PASSED_ON


def read_arguments(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[RaySettings, Serving]:
    """Requests to Ray, and the settings of each replica.

    Settings that no argument names come from the environment and from the TOML file `config`, as for `nanoserve serve`.
    Raises `BadValueError`.
    """
    for name in arguments:
        if name not in _OWN and name not in _PASSED_ON and name != "config":
            near = difflib.get_close_matches(name, {*_OWN, *_PASSED_ON}, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadValueError(name, f"is not an argument of {APP}{hint}")
    own = RaySettings(
        **{
            name: _OWN[name].read(value, f"the argument {name}", text=isinstance(value, str)).value
            for name, value in arguments.items()
            if name in _OWN
        }
    )
    if own.max_replicas is not None and own.max_replicas < own.replicas:
        raise BadValueError(
            "max_replicas", f"must be at least replicas, {own.replicas}, got {own.max_replicas}"
        )
    flags = {name: arguments[name] for name in _PASSED_ON & arguments.keys()}
    configuration = read_configuration(flags, environ, config=arguments.get("config"))
    for name in _OF_ONE_SERVER:
        given = configuration.values[name]
        if given.value is not None:
            message = f"cannot be shared by the replicas of a machine; leave it out (from {given.origin})"
            raise BadValueError(name, message)
    return own, Serving.of(configuration)


def split_arguments(written: Iterable[str]) -> dict[str, str]:
    """`name=value` each, as `serve run` takes them."""
    arguments = {}
    for each in written:
        name, equals, value = each.partition("=")
        if not equals:
            raise BadValueError(each, "must be written name=value, such as replicas=4")
        arguments[name] = value
    return arguments


def deploy_file(arguments: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The YAML file for `serve deploy`; raises `BadValueError` for arguments that the application would refuse."""
    read_arguments(arguments, environ)
    if "api_key" in arguments:
        message = "would stand in the file; name a file on every machine with api_key_file, or set NANOSERVE_API_KEY there"
        raise BadValueError("api_key", message)
    lines = [
        "# serve deploy FILE",
        "http_options: {host: 0.0.0.0, port: 8000}",
        "applications:",
        "- name: nanoserve",
        "  route_prefix: /",
        f"  import_path: {APP}",
        "  args:" if arguments else "  args: {}",
        *(f"    {name}: {json.dumps(value)}" for name, value in arguments.items()),
    ]
    return "\n".join(lines) + "\n"
