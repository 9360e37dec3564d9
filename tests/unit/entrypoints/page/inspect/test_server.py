"""The inspector's server: one document, one method, one machine."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import psutil
import pytest

from nanoserve.entrypoints.page.inspect.command import DocumentServer
from tests.http_thread import answering
from tests.patience import PATIENCE

DOCUMENT = b"<!doctype html>" + bytes(range(256)) * 4000


@pytest.fixture
def server() -> Iterator[DocumentServer]:
    opened = DocumentServer(DOCUMENT)
    with answering(opened):
        yield opened


def ask(
    server: DocumentServer, method: str = "GET", path: str | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.request(method, path or server.path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_it_answers_with_the_document(server: DocumentServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.server_port}{server.path}"
    assert ask(server) == (200, DOCUMENT)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT"])
def test_it_answers_to_get_only(server: DocumentServer, method: str) -> None:
    status, body = ask(server, method)
    assert status == 501
    assert DOCUMENT not in body


@pytest.mark.parametrize("path", ["/", "/index.html", "/ui/main.js", "/../etc/passwd", "/?x", "*"])
def test_there_is_nothing_else(server: DocumentServer, path: str) -> None:
    assert ask(server, path=path)[0] == 404


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", "", "box"])
def test_a_name_that_was_made_to_point_here_is_refused(server: DocumentServer, host: str) -> None:
    status, body = ask(server, Host=host)
    assert status == 403
    assert b"doctype html>\x00" not in body


def test_no_two_servers_have_the_same_path(server: DocumentServer) -> None:
    with DocumentServer(DOCUMENT) as other:
        assert other.path != server.path
        assert ask(server, path=other.path)[0] == 404


def test_localhost_is_another_name_of_it(server: DocumentServer) -> None:
    assert ask(server, Host=f"localhost:{server.server_port}") == (200, DOCUMENT)


def test_it_listens_on_this_machine_only(server: DocumentServer) -> None:
    listening = [
        each.laddr.ip
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == server.server_port
    ]
    assert listening == ["127.0.0.1"]


def test_a_silent_client_delays_no_other(server: DocumentServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as silent:
        silent.sendall(b"GET / HT")
        assert ask(server) == (200, DOCUMENT)


def test_a_port_that_is_taken_is_an_error(server: DocumentServer) -> None:
    with pytest.raises(OSError, match="in use"):
        DocumentServer(DOCUMENT, server.server_port)
