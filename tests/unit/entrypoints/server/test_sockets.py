"""Sockets: bound first, for their owner, and refused with the cause, the fix and a code."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import stat

import pytest

from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.config.serve_settings import ListenSettings
from nanoserve.entrypoints.server.sockets import (
    SEND_BUFFER,
    StartError,
    describe,
    is_open_to_all,
    listening_sockets,
    model_names,
    unix_socket,
    with_code,
)
from nanoserve.ports.errors import BadValueError, ModelLoadError, OutOfMemoryError


def test_port_0_is_one_free_port_on_every_address_of_a_host() -> None:
    with listening_sockets(ListenSettings(host="localhost", port=0)) as (sockets,):
        ports = {each.getsockname()[1] for each in sockets}
        assert len(ports) == 1
        assert ports != {0}
        assert not is_open_to_all(sockets)


def test_a_port_in_use_is_said_to_be_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(
                StartError, match=rf"port {port} on 127\.0\.0\.1 is in use.*--port \[PORT_IN_USE\]"
            ),
            listening_sockets(ListenSettings(port=port)),
        ):
            pass


def test_the_system_buffers_a_bounded_part_of_an_unread_answer() -> None:
    with listening_sockets(ListenSettings(port=0)) as ((bound,),), socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(bound.getsockname())
        accepted, _ = bound.accept()
        with accepted:
            accepted.settimeout(0.2)
            taken = 0
            with contextlib.suppress(TimeoutError):
                while taken < 32 << 20:
                    taken += accepted.send(bytes(4096))
        assert taken < 4 * SEND_BUFFER


def test_two_servers_that_start_together_do_not_share_a_port() -> None:
    with listening_sockets(ListenSettings(port=0)) as ((first,),):
        port = first.getsockname()[1]
        with pytest.raises(StartError, match="PORT_IN_USE"), listening_sockets(ListenSettings(port=port)):
            pass


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 300, "\udcff"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with (
        pytest.raises(StartError, match=r"^(192|'(no|aa|.udcff)).*\[ADDRESS_UNAVAILABLE\]"),
        listening_sockets(ListenSettings(host=host)),
    ):
        pass


def test_everywhere_is_recognised() -> None:
    with listening_sockets(ListenSettings(host="0.0.0.0", port=0)) as (sockets,):
        assert is_open_to_all(sockets)
        assert describe(sockets[0]).startswith("http://0.0.0.0:")


def test_a_model_is_called_by_its_folder_or_file_or_name_on_the_hub(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m-Q4_K_M.gguf").touch()
    models = [None, str(tmp_path), str(tmp_path / "m-Q4_K_M.gguf"), "owner/model:m-Q4_K_M.gguf"]
    found = [model_names(EngineSettings(model=model), ListenSettings()) for model in models]
    assert found == [("built-in",), (tmp_path.name,), ("m-Q4_K_M",), ("owner/model:m-Q4_K_M.gguf",)]


def test_a_unix_socket_is_its_owners_and_goes_with_the_server(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "api.sock"
    with listening_sockets(ListenSettings(uds=str(path))) as (sockets,):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert describe(sockets[0]) == f"unix:{path}"
    assert not path.exists()


def test_a_socket_that_a_dead_server_left_is_replaced_and_a_living_one_is_not(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with unix_socket(path) as living:
        living.listen()
        with pytest.raises(StartError, match=r"in use.*\[SOCKET_UNAVAILABLE\]"), unix_socket(path):
            pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_a_file_is_never_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(StartError), unix_socket(str(path)):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BadValueError("dtype", "is odd"), "dtype: is odd [BAD_SETTING]"),
        (ModelLoadError("no config.json"), "no config.json [MODEL_NOT_LOADED]"),
        (OutOfMemoryError("too small"), "too small [OUT_OF_MEMORY]"),
        (StartError("x", "PORT_IN_USE"), "x [PORT_IN_USE]"),
    ],
)
def test_every_failed_start_has_a_code(error: BadValueError, line: str) -> None:
    assert str(with_code(error)) == line
    assert isinstance(with_code(error), BadValueError) == isinstance(error, BadValueError)


def test_each_http_process_has_a_socket_at_the_same_port_which_nobody_else_shares() -> None:
    with listening_sockets(ListenSettings(port=0, http_workers=3)) as groups:
        bound = [each for group in groups for each in group]
        addresses = {each.getsockname() for each in bound}
        assert (len(groups), len(bound), len(addresses)) == (3, 3, 1)
        [(_, port)] = addresses
        for count in (1, 2):
            settings = ListenSettings(port=port, http_workers=count)
            with pytest.raises(StartError, match="PORT_IN_USE"), listening_sockets(settings):
                pass


def test_a_unix_socket_is_the_same_one_for_all_http_processes(tmp_path: pathlib.Path) -> None:
    with listening_sockets(ListenSettings(uds=str(tmp_path / "s"), http_workers=2)) as ((one,), (two,)):
        assert one is two
