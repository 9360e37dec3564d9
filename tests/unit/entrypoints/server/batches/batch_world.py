"""Servers that keep files and batches in a folder, over the scripted engine, and what clients do with them."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx

from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings, BatchSettings
from nanoserve.entrypoints.server.batches.running import BatchService
from tests.patience import wait_until
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

URL = "/v1/completions"
LIVING = {"validating", "in_progress", "finalizing", "cancelling"}


@contextlib.contextmanager
def batch_world(folder: pathlib.Path, *keys: str, **settings: Any) -> Iterator[AppWorld]:
    access = AccessSettings(api_key=tuple(map(Secret, keys)))
    with app_world(access=access, batches=BatchSettings(batch_dir=str(folder), **settings)) as world:
        yield world


def batches_of(world: AppWorld) -> BatchService:
    assert world.server.batches is not None
    return world.server.batches


def lines(*names: str, url: str = URL, **body: Any) -> bytes:
    """Requests called by their prompts."""
    more = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    each = [
        {"custom_id": name, "method": "POST", "url": url, "body": {"prompt": name, **more}} for name in names
    ]
    return "\n".join(map(json.dumps, each)).encode()


def upload(
    client: httpx.Client, content: bytes, name: str = "requests.jsonl", **fields: str
) -> httpx.Response:
    return client.post("/v1/files", files={"file": (name, content)}, data={"purpose": "batch", **fields})


def file_of(client: httpx.Client, content: bytes) -> str:
    answer = upload(client, content)
    assert answer.status_code == 200, answer.text
    file_id: str = answer.json()["id"]
    return file_id


def create(client: httpx.Client, file_id: str, endpoint: str = URL, window: str = "24h", **more: Any) -> Any:
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window, **more}
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def state(client: httpx.Client, batch: Any) -> Any:
    answer = client.get(f"/v1/batches/{batch['id']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(client: httpx.Client, batch: Any) -> Any:
    wait_until(lambda: state(client, batch)["status"] not in LIVING)
    return state(client, batch)


def content(client: httpx.Client, file_id: str) -> dict[str, Any]:
    """Entries by custom_id, of which each stands once."""
    answer = client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200, answer.text
    entries = [json.loads(line) for line in answer.text.splitlines()]
    found = {each["custom_id"]: each for each in entries}
    assert len(found) == len(entries)
    return found


def refusal(answer: httpx.Response, status: int) -> tuple[str, str | None, str]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error["code"], error["param"], error["message"]
