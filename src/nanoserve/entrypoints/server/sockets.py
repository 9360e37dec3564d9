"""The sockets the server listens on, bound before anything slow happens; the open files they take, and the names they go by."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import pathlib
import resource
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import structlog

from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings, shown_model
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, ListenSettings
from nanoserve.entrypoints.compose.host_names import host_name
from nanoserve.ports import errors
from nanoserve.ports.errors import BadValueError, NanoserveError

_START_CODES: Final[tuple[tuple[type[NanoserveError], str], ...]] = (
    (BadValueError, "BAD_SETTING"),
    (errors.ModelLoadError, "MODEL_NOT_LOADED"),
    (errors.OutOfMemoryError, "OUT_OF_MEMORY"),
    (errors.EngineDiedError, "ENGINE_DIED"),
)


class StartError(NanoserveError):
    """The server cannot start; `code` names the kind of reason."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code


def with_code(error: NanoserveError) -> NanoserveError:
    """The error with its code at the end of its message."""
    if isinstance(error, StartError):
        return error
    code = next((code for kind, code in _START_CODES if isinstance(error, kind)), "START_FAILED")
    if isinstance(error, BadValueError):
        return BadValueError(error.parameter, f"{str(error).removeprefix(f'{error.parameter}: ')} [{code}]")
    return StartError(str(error), code)


SEND_BUFFER: Final = 128 << 10
"""Bytes that the system keeps for a client that does not read (Linux doubles the number for its own needs). By itself
it would take megabytes of an answer from us, for each of them, and a reader that has stopped would never be noticed."""
_OWNER_ONLY: Final = 0o600
_CODES: Final = {
    errno.EADDRINUSE: ("PORT_IN_USE", "is in use; stop the other program, or choose another with --port"),
    errno.EACCES: ("PORT_FORBIDDEN", "needs more rights; choose a port from 1024"),
    errno.EADDRNOTAVAIL: ("ADDRESS_UNAVAILABLE", "is no address of this machine; choose another with --host"),
}
_EVERYWHERE: Final = {"0.0.0.0", "::"}  # noqa: S104 - to warn of them


@contextlib.contextmanager
def listening_sockets(settings: ListenSettings) -> Iterator[list[list[socket.socket]]]:
    """The sockets for clients, a group for each HTTP process. Raises `StartError`.

    On an address every process has a socket of its own, and the system spreads connections evenly; connections at the socket of a
    dead process wait for its successor. A Unix socket is the same one for all.
    """
    count = settings.http_workers or 1
    if settings.uds is not None:
        with unix_socket(settings.uds) as bound:
            yield [[bound]] * count
        return
    with contextlib.ExitStack() as stack:
        groups: list[list[socket.socket]] = [[] for _ in range(count)]
        port = settings.port
        for family, address in _addresses(settings.host, port):
            one = _bind(family, (address[0], port, *address[2:]))
            port = one.getsockname()[1]
            if count == 1:
                groups[0].append(stack.enter_context(one))
                continue
            one.close()  # it was there to find out that nobody else listens, whom the others would share the port with
            for group in groups:
                bound = _bind(family, (address[0], port, *address[2:]), backlog=settings.backlog)
                group.append(stack.enter_context(bound))
        yield groups


@contextlib.contextmanager
def unix_socket(path: str) -> Iterator[socket.socket]:
    """A Unix socket for its owner alone; one that a dead server has left is replaced. Raises `StartError`."""
    _remove_abandoned(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 & ~_OWNER_ONLY)
    try:
        bound.bind(path)
    except OSError as error:
        bound.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
        raise StartError(f"cannot listen on {path}: {reason}; choose another", "SOCKET_UNAVAILABLE") from None
    finally:
        os.umask(before)
    try:
        with bound:
            yield bound
    finally:
        pathlib.Path(path).unlink(missing_ok=True)


def describe(bound: socket.socket) -> str:
    """Where clients find a socket."""
    address = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return f"unix:{address}"
    return f"http://[{address[0]}]:{address[1]}" if ":" in address[0] else f"http://{address[0]}:{address[1]}"


def is_open_to_all(sockets: Sequence[socket.socket]) -> bool:
    """True if other machines can connect wherever this one has an address."""
    return any(each.family != socket.AF_UNIX and each.getsockname()[0] in _EVERYWHERE for each in sockets)


def is_on_loopback(sockets: Sequence[socket.socket]) -> bool:
    """True if only this machine's programs can connect, a browser's pages among them."""
    return all(
        each.family != socket.AF_UNIX and ipaddress.ip_address(each.getsockname()[0]).is_loopback
        for each in sockets
    )


def is_on_this_machine(sockets: Sequence[socket.socket]) -> bool:
    """True if no other machine can connect."""
    return is_on_loopback([each for each in sockets if each.family != socket.AF_UNIX])


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        message = f"{host!r} is not an address or a host name; choose another with --host"
        raise StartError(message, "ADDRESS_UNAVAILABLE") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind(
    family: socket.AddressFamily, address: tuple[Any, ...], *, backlog: int | None = None
) -> socket.socket:
    """A socket of its own; with a `backlog`, one of several at this address, which accepts from now on."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if backlog is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
        bound.listen(backlog or 1)  # Linux lets two sockets bind with SO_REUSEADDR, and tells of it only here
    except OSError as error:
        bound.close()
        code, advice = _CODES.get(error.errno or 0, ("ADDRESS_UNAVAILABLE", str(error.strerror or error)))
        place = address[0] if error.errno == errno.EADDRNOTAVAIL else f"port {address[1]} on {address[0]}"
        raise StartError(f"{place} {advice}", code) from None
    return bound


def _remove_abandoned(path: str) -> None:
    """Remove a socket that no process listens on; anything else is left alone, and binding will fail on it."""
    if not pathlib.Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            pathlib.Path(path).unlink(missing_ok=True)
        except OSError:
            return


def model_names(engine: EngineSettings, listen: ListenSettings) -> tuple[str, ...]:
    """The names that were chosen; else the model's."""
    if listen.served_model_name:
        return listen.served_model_name
    return (shown_model(engine.model),)


def host_names(
    access: AccessSettings, listen: ListenSettings, sockets: Sequence[socket.socket], *, has_keys: bool
) -> frozenset[str] | None:
    """The names that requests may call the server by, besides addresses and localhost; None if any will do.

    A page of another site has no key; a server for other machines has names that only its operator knows.
    """
    if access.allowed_host or (is_on_loopback(sockets) and not has_keys):
        own = host_name(listen.host)
        return frozenset(access.allowed_host) | ({own} if own else set())
    return None


_OTHERS: Final = 256


def raise_open_files(connections: int) -> None:
    """Allow as many open files as the connections need, if the system lets us; warn where it does not."""
    wanted = connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    if soft < wanted and soft != resource.RLIM_INFINITY:
        allowed = wanted if unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            structlog.get_logger().warning("few open files; raise ulimit -n", allowed=allowed, wanted=wanted)
