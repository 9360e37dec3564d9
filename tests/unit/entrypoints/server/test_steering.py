"""The routes of trainers: who may call them, what they answer, and what they do to clients."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import pathlib
from typing import Any

import attrs
import httpx
import pytest

from nanoserve.entrypoints.app.orders import Client
from nanoserve.entrypoints.compose.config.kinds import Secret
from nanoserve.entrypoints.compose.config.serve_settings import AccessSettings
from nanoserve.entrypoints.server.http.security import ApiKey, KeyRing, read_keys, read_steering_keys
from nanoserve.entrypoints.server.serving import drain
from nanoserve.entrypoints.server.steering import ABANDONED, PATHS, check_access
from nanoserve.ports.engine_link import ReadWeights
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.steering import SharedTensor
from tests.fakes.counting_store import CountingStore
from tests.patience import PATIENCE, wait_until
from tests.unit.entrypoints.server.http.app_world import AppWorld, app_world

STEERED = AccessSettings(steering=True)


def client(world: AppWorld, key: str | None = None) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=world.url, timeout=PATIENCE, trust_env=False, headers=headers)


def ask(world: AppWorld, **more: Any) -> dict[str, Any]:
    body = {"model": "scripted", "prompt": "abc", "max_tokens": 6, "seed": 1, "ignore_eos": True}
    with client(world) as http:
        answer = http.post("/v1/completions", json={**body, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_without_the_flag_each_route_says_how_to_turn_it_on() -> None:
    with app_world() as world, client(world) as http:
        for path in PATHS:
            for answer in (http.get(path), http.post(path)):
                assert answer.status_code == 404
                assert "--steering" in answer.json()["error"]["message"]
        assert ask(world)["choices"][0]["text"]


def test_requests_of_a_paused_server_wait_and_are_answered_after_it() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        expected = ask(world)["choices"][0]["text"]
        assert http.get("/is_paused").json() == {"is_paused": False}
        assert http.post("/pause", params={"mode": "keep"}).json() == {"status": "paused"}
        assert http.get("/is_paused").json() == {"is_paused": True}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, world)
            wait_until(lambda: len(world.engine.requests) == 2)
            steps = world.engine.engine.scheduler.table.step
            assert http.get("/health").status_code == 200
            assert (waiting.done(), world.engine.engine.scheduler.table.step) == (False, steps)
            assert http.post("/resume").json() == {"status": "resumed"}
            assert waiting.result(PATIENCE)["choices"][0]["text"] == expected
        assert http.post("/reset_prefix_cache", json={}).json() == {"success": True, "status": "ok"}


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_answer_is_what_there_was_and_says_so(stream: bool) -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        whole = ask(world, max_tokens=60)["choices"][0]["text"]
        world.engine.budget = 10
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            body = {"model": "scripted", "prompt": "abc", "max_tokens": 60, "seed": 1}
            asked = pool.submit(
                http.post, "/v1/completions", json={**body, "ignore_eos": True, "stream": stream}
            )
            wait_until(lambda: world.engine.budget == 0)
            with client(world) as trainer:
                paused = pool.submit(trainer.post, "/pause")
                wait_until(lambda: world.engine.steering.paused)
                world.engine.allow(None)
                assert paused.result(PATIENCE).json() == {"status": "paused"}
            answer = asked.result(PATIENCE)
        if stream:
            assert '"finish_reason":"abort"' in answer.text
        else:
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "abort"
            assert choice["text"]
            assert whole.startswith(choice["text"])
            assert len(choice["text"]) < len(whole)


def test_a_wrong_mode_is_named() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        refused = http.post("/pause", params={"mode": "stop"})
        assert refused.status_code == 400
        assert "keep, wait, abort" in refused.json()["error"]["message"]
        assert http.get("/is_paused").json() == {"is_paused": False}


def test_a_parameter_that_comes_twice_is_refused_by_name() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        refused = http.post("/pause?mode=keep&mode=abort")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mode")
        assert http.get("/is_paused").json() == {"is_paused": False}
        woken = http.post("/wake_up?tags=weights&tags=kv_cache").json()
        assert "once" not in woken["error"]["message"]


def test_steering_has_a_key_of_its_own() -> None:
    access = AccessSettings(
        api_key=(Secret("sk-client"),), steering=True, steering_key=(Secret("sk-trainer"),)
    )
    with app_world(access=access) as world:
        for key, steers, asks in ((None, 401, 401), ("sk-client", 401, 200), ("sk-trainer", 200, 401)):
            with client(world, key) as http:
                assert http.get("/is_paused").status_code == steers
                assert http.get("/v1/models").status_code == asks


def test_pages_in_a_browser_cannot_steer_without_a_key() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        refused = http.post("/pause", headers={"origin": "http://127.0.0.1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert http.get("/is_paused").json() == {"is_paused": False}


def test_a_key_that_would_not_divide_trainers_from_clients_is_refused() -> None:
    clients = KeyRing(
        [ApiKey(digest=read_keys(AccessSettings(api_key=(Secret("a"),))).digests[0], client=Client())]
    )
    with pytest.raises(BadValueError, match="is needed if clients have keys"):
        read_steering_keys(STEERED, clients)
    with pytest.raises(BadValueError, match="is a client's key too"):
        read_steering_keys(AccessSettings(steering=True, steering_key=(Secret("a"),)), clients)
    assert len(read_steering_keys(STEERED, KeyRing([]))) == 0


def test_trainers_find_what_they_read_of_vllm_s_configuration() -> None:
    with app_world() as world, client(world) as http:
        assert "vllm_config" not in http.get("/server_info").json()
        found = http.get("/server_info", params={"config_format": "json"}).json()["vllm_config"]
        assert found["model_config"]["dtype"].startswith("torch.")
        assert found["lora_config"] is None
        assert found["parallel_config"] == {"data_parallel_size": 1, "tensor_parallel_size": 1}
        assert found["weight_transfer_config"] is None
        assert http.get("/get_world_size").json() == {"world_size": 1}


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"])
def test_what_an_order_does_not_read_is_refused(path: str) -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        misspelt = http.post(path, params={"moode": "keep"})
        body = http.post(path, json={"mode": "keep"})
        for answer, named in ((misspelt, "moode"), (body, "body")):
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == named
            assert path in answer.json()["error"]["message"] or named == "body"
        if path == "/pause":
            assert "/pause?mode=" in body.json()["error"]["message"]
        assert http.get("/is_paused").json() == {"is_paused": False}


def interrupted(world: AppWorld, path: str, body: dict[str, Any], mode: str) -> tuple[httpx.Response, ...]:
    """The answers to a request, and to the pause that comes while it is under way; `wait` is undone before it is complete."""
    world.engine.budget = 10
    with client(world) as http, client(world) as trainer, concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = pool.submit(http.post, path, json=body)
        wait_until(lambda: world.engine.budget == 0)
        paused = pool.submit(trainer.post, "/pause", params={"mode": mode})
        wait_until(lambda: world.engine.steering.paused)
        if mode == "wait":
            world.call(world.engine.engine.resume)
        world.call(lambda: world.engine.allow(None))
        return asked.result(PATIENCE), paused.result(PATIENCE)


MESSAGE = {"model": "scripted", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 60}


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_message_is_a_turn_that_paused(stream: bool) -> None:
    with app_world(access=STEERED, eos_token_ids=()) as world:
        answer, _ = interrupted(world, "/v1/messages", {**MESSAGE, "stream": stream}, "abort")
        assert answer.status_code == 200, answer.text
        if stream:
            assert '"stop_reason":"pause_turn"' in answer.text
            assert "event: error" not in answer.text
        else:
            assert answer.json()["stop_reason"] == "pause_turn"
            assert answer.json()["content"][0]["text"]


def test_an_aborted_response_is_cancelled_and_ollama_s_is_too_short() -> None:
    with app_world(access=STEERED, eos_token_ids=()) as world, client(world) as http:
        body = {"model": "scripted", "input": "abc", "max_output_tokens": 60}
        response = interrupted(world, "/v1/responses", body, "abort")[0].json()
        assert (response["status"], response["output"][-1]["status"]) == ("cancelled", "incomplete")
        assert http.post("/resume").status_code == 200
        chat = {"model": "scripted", "messages": MESSAGE["messages"], "stream": False}
        answer = interrupted(world, "/api/chat", chat, "abort")[0].json()
        assert (answer["done"], answer["done_reason"]) == (True, "length")
        assert answer["message"]["content"]


def test_a_pause_that_another_client_undoes_is_a_conflict() -> None:
    with app_world(access=STEERED, eos_token_ids=()) as world:
        body = {"model": "scripted", "prompt": "abc", "max_tokens": 60}
        answer, paused = interrupted(world, "/v1/completions", body, "wait")
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert paused.status_code == 409
        assert "resumed" in paused.json()["error"]["message"]


def test_an_update_of_which_nothing_was_read_stays_open(tmp_path: pathlib.Path) -> None:
    access = AccessSettings(steering=True, weight_dir=str(tmp_path))
    with app_world(access=access) as world, client(world) as http:
        assert "no update is open" in http.post("/finish_weight_update").json()["error"]["message"]
        assert http.post("/start_weight_update").status_code == 200
        for _ in range(2):
            refused = http.post("/finish_weight_update")
            assert refused.status_code == 409
            assert "stays open" in refused.json()["error"]["message"]
        assert http.post("/start_weight_update").status_code == 409


@pytest.mark.parametrize("in_one_call", [False, True])
def test_an_update_that_running_requests_hold_up_stays_open(
    tmp_path: pathlib.Path, in_one_call: bool
) -> None:
    (tmp_path / "a").mkdir()
    access = AccessSettings(steering=True, weight_dir=str(tmp_path))
    with app_world(access=access, eos_token_ids=()) as world, client(world) as trainer:
        store = world.engine.engine._weight_store = CountingStore()
        world.engine.budget = 10
        with client(world) as http, concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = pool.submit(http.post, "/v1/messages", json=MESSAGE)
            wait_until(lambda: world.engine.budget == 0)
            if in_one_call:
                refused = trainer.post("/update_weights", json={"weight_dir": "a"})
            else:
                assert trainer.post("/start_weight_update").status_code == 200
                body = {"update_info": {"weight_dir": "a"}}
                assert trainer.post("/update_weights", json=body).status_code == 200
                refused = trainer.post("/finish_weight_update")
            assert refused.status_code == 409
            assert "pause the engine" in refused.json()["error"]["message"]
            again = trainer.post("/start_weight_update")
            assert again.status_code == (200 if in_one_call else 409)
            if in_one_call:
                assert trainer.post("/update_weights", json={"update_info": {"weight_dir": "a"}}).is_success
            assert (store.written, trainer.get("/weight_info").json()["version"]) == (0, 0)
            paused = pool.submit(trainer.post, "/pause", params={"mode": "keep"})
            wait_until(lambda: world.engine.steering.paused)
            world.call(lambda: world.engine.allow(None))
            assert paused.result(PATIENCE).status_code == 200
            assert trainer.post("/finish_weight_update").json()["version"] == 1
            assert store.written == 1
            assert trainer.post("/resume").status_code == 200
            assert asked.result(PATIENCE).json()["stop_reason"] == "max_tokens"


def test_an_update_that_can_never_come_is_refused_where_it_begins() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        for path in ("/init_weight_transfer_engine", "/start_weight_update"):
            refused = http.post(path)
            assert refused.status_code == 400
            assert "--weight-dir" in refused.json()["error"]["message"]


def test_tensors_of_a_trainer_on_the_gpu_are_named_by_handles_and_what_is_wrong_with_them_is_said() -> None:
    good: dict[str, Any] = {
        "names": ["a", "b"],
        "dtype_names": ["bfloat16", "float32"],
        "shapes": [[2, 3], []],
        "ipc_handles": [base64.b64encode(bytes([each] * 64)).decode() for each in (1, 2)],
        "offsets": [0, 512],
    }
    with app_world(access=STEERED) as world, client(world) as http:
        assert world.engine.facts is not None
        on_cpu = world.engine.facts
        sent: list[Any] = []

        async def steer(order: Any) -> Any:
            sent.append(order)
            return world.engine.steering

        def update(**changed: Any) -> str:
            assert http.post("/start_weight_update").status_code == 200
            answer = http.post("/update_weights", json={"update_info": {**good, **changed}})
            world.skip(ABANDONED)
            return "" if answer.status_code == 200 else answer.json()["error"]["message"]

        assert http.post("/start_weight_update").status_code == 400  # there is neither a folder nor a GPU
        world.engine.facts = attrs.evolve(on_cpu, device="cuda")
        world.engine.steer = steer  # type: ignore[method-assign]
        assert not update()
        assert sent == [
            ReadWeights(
                "",
                tensors=(
                    SharedTensor("a", "bfloat16", (2, 3), b"\1" * 64, 0),
                    SharedTensor("b", "float32", (), b"\2" * 64, 512),
                ),
            )
        ]
        for wrong, said in (
            ({"offsets": [0]}, "lists of one length"),
            ({"shapes": [[2, 3], [-1]]}, "shapes"),
            ({"dtype_names": ["int8", "float32"]}, "dtype_names"),
            ({"ipc_handles": ["AAAA", "AAAA"]}, "ipc_handles"),
            ({"pickled": "gASV"}, "pickled"),
            ({"names": [], "dtype_names": [], "shapes": [], "ipc_handles": [], "offsets": []}, "no tensors"),
        ):
            assert said in update(**wrong)
        assert http.post("/start_weight_update").status_code == 200
        refused = http.post("/update_weights", json={"update_info": {"weight_dir": "x"}})
        assert "--weight-dir" in refused.json()["error"]["message"]
        assert len(sent) == 1


def test_the_folder_that_is_allowed_is_not_one_below_it(tmp_path: pathlib.Path) -> None:
    with app_world(access=AccessSettings(steering=True, weight_dir=str(tmp_path))) as world:
        for folder in ("", ".", str(tmp_path)):
            with client(world) as http:
                refused = http.post("/update_weights", json={"weight_dir": folder})
            assert refused.status_code == 400, refused.text
            assert "must be a folder below" in refused.json()["error"]["message"]
            world.skip(ABANDONED)


def test_the_steering_key_reads_what_trainers_read_and_a_refusal_names_the_kind_of_key() -> None:
    access = AccessSettings(
        api_key=(Secret("sk-client"),), steering=True, steering_key=(Secret("sk-trainer"),)
    )
    with app_world(access=access) as world:
        for path in ("/server_info", "/get_server_info", "/get_world_size"):
            for key, status in (("sk-client", 200), ("sk-trainer", 200), ("sk-other", 401), (None, 401)):
                with client(world, key) as http:
                    assert http.get(path).status_code == status
        for key in ("sk-client", None):
            with client(world, key) as http:
                assert "--steering-key" in http.post("/pause").json()["error"]["message"]
        with client(world, "sk-trainer") as http:
            message = http.get("/v1/models").json()["error"]["message"]
            assert "--api-key" in message
            assert "--steering-key" not in message


def test_settings_of_trainers_need_their_partners(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path)
    for access, said in (
        (AccessSettings(steering_key=(Secret("a"),)), "steering_key: is for trainers; give --steering too"),
        (AccessSettings(weight_dir=folder), "weight_dir: is for trainers; give --steering too"),
        (AccessSettings(steering=True, weight_dir=f"{folder}/nope"), "weight_dir: is not a folder"),
        (AccessSettings(lora_dir=folder), "lora_dir: needs slots"),
        (AccessSettings(lora_dir=f"{folder}/nope"), "lora_dir: is not a folder: .*nope; create it first"),
    ):
        with pytest.raises(BadValueError, match=said):
            check_access(access, max_loras=0)
    check_access(AccessSettings(lora_dir=folder), max_loras=1)
    check_access(AccessSettings(steering=True, steering_key=(Secret("a"),), weight_dir=folder), max_loras=0)


def test_a_paused_server_that_ends_answers_what_has_waited() -> None:
    with app_world(access=STEERED) as world, client(world) as http:
        assert http.post("/pause", params={"mode": "keep"}).status_code == 200
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, world)
            wait_until(lambda: len(world.engine.requests) == 1)
            world.call(lambda: world.engine.allow(0))
            ending = drain(world.server, lambda: 0, patience=10 * PATIENCE, now=asyncio.Event())
            try:
                ended = asyncio.run_coroutine_threadsafe(ending, world.loop)
                wait_until(lambda: not world.engine.steering.paused)
                for path in ("/pause", "/pause?mode=keep", "/sleep"):
                    refused = http.post(path)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                world.call(lambda: world.engine.allow(None))
                assert ended.result(PATIENCE)
                assert waiting.result(PATIENCE)["choices"][0]["text"]
            finally:
                world.call(world.engine.engine.resume)
                world.call(lambda: world.engine.allow(None))
