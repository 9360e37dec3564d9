"""Files that clients keep: what is taken, refused, listed, and whose they are."""

from __future__ import annotations

import errno
import json
import os
import pathlib
from typing import Any

import pytest

from nanoserve.entrypoints.compose.config.serve_settings import BatchSettings, ServeSettings
from nanoserve.entrypoints.server.batches.store import BatchFolder
from nanoserve.entrypoints.server.http.security import read_keys
from nanoserve.entrypoints.server.serving import open_batches
from nanoserve.ports.errors import BadValueError
from tests.patience import wait_until
from tests.unit.entrypoints.server.batches.batch_world import (
    batch_world,
    batches_of,
    create,
    ended,
    file_of,
    lines,
    refusal,
    upload,
)
from tests.unit.entrypoints.server.http.app_world import app_world

JSON = {"content-type": "application/json"}


def test_a_file_is_kept_listed_read_and_deleted(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        made = upload(client, b"{}\n" * 40_000, "my file.jsonl").json()
        assert made["object"] == "file"
        assert (made["bytes"], made["filename"], made["purpose"]) == (120_000, "my file.jsonl", "batch")
        assert client.get(f"/v1/files/{made['id']}").json() == made
        assert client.get(f"/v1/files/{made['id']}/content").content == b"{}\n" * 40_000
        assert client.get("/v1/files").json()["data"] == [made]
        gone = client.delete(f"/v1/files/{made['id']}").json()
        assert gone == {"id": made["id"], "object": "file", "deleted": True}
        assert client.get("/v1/files").json()["data"] == []
        assert refusal(client.get(f"/v1/files/{made['id']}/content"), 404)[0] == "file_not_found"
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [tmp_path / "lock"]


def test_lists_are_read_page_by_page(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        ids = [file_of(client, lines("a")) for _ in range(5)]
        assert [each["id"] for each in client.get("/v1/files", params={"order": "asc"}).json()["data"]] == ids
        first = client.get("/v1/files", params={"limit": 2}).json()
        assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[4], ids[3], True)
        last = client.get("/v1/files", params={"limit": 3, "after": ids[3]}).json()
        assert ([each["id"] for each in last["data"]], last["has_more"]) == ([ids[2], ids[1], ids[0]], False)
        assert client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
        assert refusal(client.get("/v1/files", params={"after": "file-x"}), 400)[:2] == (
            "invalid_value",
            "after",
        )
        for name, given, expected in (
            ("limit", "0", "must be a whole number from 1 to 10000, got '0'"),
            ("limit", "abc", "must be a whole number from 1 to 10000, got 'abc'"),
            ("order", "zz", "must be asc or desc, got 'zz'"),
        ):
            _, param, message = refusal(client.get("/v1/files", params={name: given}), 400)
            assert (param, message) == (name, f"{name}: {expected}")


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        ({"files": {"file": ("a", b"")}, "data": {"purpose": "batch"}}, 400, "invalid_value", "file"),
        ({"files": {"other": ("a", b"x")}, "data": {"purpose": "batch"}}, 400, "invalid_value", "file"),
        ({"files": {"file": ("a", b"x")}}, 400, "invalid_value", "purpose"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "fine-tune"}}, 400, "invalid_value", "purpose"),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "9"}},
            400,
            "invalid_value",
            "expires_after[seconds]",
        ),
        (
            {"files": {"file": ("a", b"x" * 5001)}, "data": {"purpose": "batch"}},
            413,
            "file_too_large",
            "file",
        ),
        ({"files": {"file": ("a", b"x" * 200_000)}}, 413, "body_too_large", None),
        ({"json": {"file": "x"}}, 415, "unsupported_media_type", None),
        (
            {"content": b"--b\r\nno", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            400,
            "invalid_form",
            None,
        ),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "invalid_form", None),
    ],
)
def test_what_is_no_form_of_a_file_is_refused_and_leaves_nothing(
    tmp_path: pathlib.Path, form: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    with batch_world(tmp_path, max_file_size=5000) as world, world.client() as client:
        answer = client.post("/v1/files", **form)
        assert refusal(answer, status)[:2] == (code, param)
        assert client.get("/v1/files").json()["data"] == []
        assert file_of(client, b"x" * 5000)
    assert len([*tmp_path.rglob("file-*")]) == 2


def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: pathlib.Path) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n"
    head += b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 5000
    with batch_world(tmp_path) as world:
        with world.connect() as connection:
            connection.sendall(head + part)
            wait_until(lambda: [*tmp_path.rglob("*.tmp")])
        wait_until(lambda: not [*tmp_path.rglob("*.tmp")])
        world.settle()
        with world.client() as client:
            assert client.get("/v1/files").json()["data"] == []


def test_a_large_file_is_taken_where_other_bodies_must_be_small(tmp_path: pathlib.Path) -> None:
    large = b"x" * (20 << 20)
    with batch_world(tmp_path) as world, world.client() as client:
        made = upload(client, large).json()
        assert made["bytes"] == len(large)
        assert (
            refusal(client.post("/v1/completions", content=large, headers=JSON), 413)[0] == "body_too_large"
        )


def test_so_many_files_are_kept_and_no_more(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, max_files=2) as world, world.client() as client:
        file_id, _ = [file_of(client, b"x") for _ in range(2)]
        assert refusal(upload(client, b"x"), 400)[0] == "too_many_files"
        client.delete(f"/v1/files/{file_id}")
        assert file_of(client, b"x")


def test_ended_batches_are_forgotten_where_there_are_too_many(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path, max_files=3) as world, world.client() as client:
        file_id = file_of(client, lines("a", max_tokens=-1))
        made = []
        for _ in range(5):
            batch = ended(client, create(client, file_id))
            assert client.delete(f"/v1/files/{batch['error_file_id']}").status_code == 200
            made.append(batch["id"])
        kept = [each["id"] for each in client.get("/v1/batches").json()["data"]]
        assert kept == made[:1:-1]
        world.call(lambda: world.engine.allow(0))
        client.delete(f"/v1/files/{file_id}")
        file_id = file_of(client, lines("a"))
        living = [create(client, file_id)["id"] for _ in range(3)]
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert refusal(client.post("/v1/batches", json=body), 429)[0] == "too_many_batches"
        assert [each["id"] for each in client.get("/v1/batches").json()["data"]] == living[::-1]


def test_each_key_sees_its_own_and_names_of_others_lead_nowhere(tmp_path: pathlib.Path) -> None:
    with (
        batch_world(tmp_path, "sk-one", "sk-two") as world,
        world.client("sk-one") as one,
        world.client("sk-two") as two,
    ):
        file_id = file_of(one, lines("a"))
        batch = create(one, file_id)
        for path in (f"files/{file_id}", f"files/{file_id}/content", f"batches/{batch['id']}"):
            assert one.get(f"/v1/{path}").status_code == 200
            assert refusal(two.get(f"/v1/{path}"), 404)[0] in {"file_not_found", "batch_not_found"}
        assert two.delete(f"/v1/files/{file_id}").status_code == 404
        assert two.post(f"/v1/batches/{batch['id']}/cancel").status_code == 404
        assert two.get("/v1/files").json()["data"] == two.get("/v1/batches").json()["data"] == []
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        assert refusal(two.post("/v1/batches", json=body), 400)[1] == "input_file_id"
        for name in ("..", "%2e%2e%2flock", "..%2f..%2fetc%2fpasswd", "lock", f"..%2f{file_id}", "%00"):
            assert one.get(f"/v1/files/{name}/content").status_code == 404
    with batch_world(tmp_path, "sk-new", "sk-one") as world, world.client("sk-one") as one:
        # It is the key that counts, not its place among the keys.
        assert file_id in [each["id"] for each in one.get("/v1/files").json()["data"]]
        with world.client("sk-new") as other:
            assert other.get("/v1/files").json()["data"] == []


def test_without_a_folder_it_is_said_how_to_have_one() -> None:
    with app_world() as world, world.client() as client:
        for path in ("/v1/files", "/v1/batches/batch_1"):
            code, _, message = refusal(client.get(path), 404)
            assert (code, "--batch-dir FOLDER" in message) == ("route_not_served", True)


def test_a_path_that_no_route_has_is_an_ordinary_404_where_files_are_kept(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        code, _, message = refusal(client.get("/v1/files/a/b/c"), 404)
        assert (code, "There is no such route" in message) == ("not_found", True)


def test_a_file_without_a_purpose_is_told_that_it_needs_one(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        message = refusal(client.post("/v1/files", files={"file": ("a", b"x")}), 400)[2]
        assert message == "purpose: is required; it is batch"


def test_lines_of_batches_without_a_folder_are_refused_at_the_start() -> None:
    settings = ServeSettings(batches=BatchSettings(batch_lines=2))
    with pytest.raises(BadValueError, match="batch_lines: is for batches; give --batch-dir too"):
        open_batches(settings, read_keys(settings.access))


def test_a_disk_that_is_full_is_one_clear_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batch_world(tmp_path) as world, world.client() as client:

        def fsync(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            code, _, message = refusal(upload(client, lines("a")), 507)
            assert (code, "No space left" in message) == ("disk_full", True)
        assert client.get("/v1/files").json()["data"] == []
        assert file_of(client, lines("a"))
    assert len([*tmp_path.rglob("file-*")]) == 2


def test_half_written_and_foreign_files_do_not_count(tmp_path: pathlib.Path) -> None:
    with batch_world(tmp_path) as world, world.client() as client:
        kept = file_of(client, lines("a"))
    mine = tmp_path / "anonymous"
    (mine / "file-1.jsonl").write_bytes(b"no record")
    (mine / "file-2.json.ab12.tmp").write_bytes(b'{"object":"file"')
    (mine / "file-3.json").write_bytes(b'{"object":"file","id"')
    (mine / "file-3.jsonl").write_bytes(b"its record is damaged")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file-4.jsonl").write_bytes(b"of somebody else")
    with batch_world(tmp_path) as world, world.client() as client:
        assert [each["id"] for each in client.get("/v1/files").json()["data"]] == [kept]
    left = sorted(each.name for each in tmp_path.rglob("*.jsonl"))
    assert left == sorted([f"{kept}.jsonl", "file-3.jsonl", "file-4.jsonl"])


def test_a_folder_is_of_one_server(tmp_path: pathlib.Path) -> None:
    first = BatchFolder(str(tmp_path))
    with pytest.raises(BadValueError, match=r"batch_dir: .* is in use by another server"):
        BatchFolder(str(tmp_path))
    first.close()
    first.close()
    BatchFolder(str(tmp_path)).close()
    with pytest.raises(BadValueError, match="batch_dir: cannot use"):
        BatchFolder(str(tmp_path / "lock"))


def test_everything_that_is_kept_is_for_the_server_alone(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "made" / "by it"
    with batch_world(root) as world, world.client() as client:
        file_of(client, lines("a"))
        assert json.loads(next(root.rglob("file-*.json")).read_bytes())["purpose"] == "batch"
        assert batches_of(world).folder.path("", "x").parent == root / "anonymous"
    modes = {each.stat().st_mode & 0o077 for each in [root, *root.rglob("*")]}
    assert modes == {0}
