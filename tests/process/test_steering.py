"""A trainer's orders to a real server, through the death of its engine."""

from __future__ import annotations

import concurrent.futures
import pathlib
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from nanoserve.adapters.embedded import model_folder
from nanoserve.entrypoints.cli.main import run_command
from tests.patience import PATIENCE, wait_until
from tests.process.server_process import ServerProcess, server_process

PROMPT = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24, "ignore_eos": True}
OPTIONS = ("--device", "cpu", "--dtype", "float32", "--steering")


def ask(server: ServerProcess, **more: Any) -> str:
    with server.client() as client:
        answer = client.post("/v1/completions", json={**PROMPT, **more})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder that trainers may name; beside it lies one with good weights."""
    root = tmp_path_factory.mktemp("trained")
    make_weights(root, "outside", scale=1.0)
    return make_weights(root / "allowed", "good", scale=2.0).parent


@pytest.fixture(scope="module")
def trained(allowed: pathlib.Path) -> Iterator[ServerProcess]:
    """A server whose weights may be any; each test leaves it awake and at work."""
    with server_process(allowed.parent, *OPTIONS, "--weight-dir", str(allowed)) as server:
        server.wait_until_ready()
        yield server


def kill_engine(server: ServerProcess, client: httpx.Client) -> None:
    """Kill it, and wait until the next one is ready."""
    restarts = client.get("/server_info").json()["restarts"]
    for each in server.children():
        if "engine_host" in " ".join(each.cmdline()):
            each.kill()
    wait_until(lambda: client.get("/server_info").json()["restarts"] > restarts)
    wait_until(lambda: client.get("/health").status_code == 200)


def test_an_engine_that_dies_while_it_is_paused_comes_back_paused(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, *OPTIONS, "--http-workers", "2") as server:
        server.wait_until_ready()
        with server.client() as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
            expected = ask(server)
            assert client.post("/pause", params={"mode": "keep"}).status_code == 200
            waiting = [pool.submit(ask, server) for _ in range(4)]

            def waits() -> bool:
                return server.metrics()["nanoserve:num_requests_waiting"] == 4

            wait_until(waits)
            kill_engine(server, client)
            assert client.get("/is_paused").json() == {"is_paused": True}
            wait_until(waits)
            assert not any(each.done() for each in waiting)
            assert client.post("/resume").status_code == 200
            assert [each.result(PATIENCE) for each in waiting] == [expected] * 4


def test_clients_that_leave_a_paused_server_are_freed(trained: ServerProcess) -> None:
    with trained.client() as client:
        assert client.post("/pause", params={"mode": "wait"}).status_code == 200
        with trained.client() as leaving:
            stream = leaving.build_request("POST", "/v1/completions", json={**PROMPT, "stream": True})
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                left = pool.submit(leaving.send, stream, stream=True)
                wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 1)
                leaving.close()
                concurrent.futures.wait([left], PATIENCE)
        wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 0)
        assert client.post("/resume").status_code == 200
        assert ask(trained)


def test_steering_needs_a_key_where_other_machines_can_connect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", "--port", "0", *OPTIONS, "--host", "0.0.0.0"]) != 0
    assert "steering_key" in capsys.readouterr().err.replace("-", "_")


def make_weights(root: pathlib.Path, name: str, *, scale: float) -> pathlib.Path:
    """The weights of the model in the box, with a different last norm."""
    folder = root / name
    folder.mkdir(parents=True)
    tensors = load_file(pathlib.Path(model_folder()) / "model.safetensors")
    torch.manual_seed(0)
    noise = 1 + scale * torch.randn_like(tensors["model.norm.weight"].float())
    tensors["model.norm.weight"] = (tensors["model.norm.weight"].float() * noise).to(
        tensors["model.norm.weight"].dtype
    )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def post(client: httpx.Client, path: str, body: object = None, status: int = 200) -> Any:
    answer = client.post(path, json=body if body is not None else {})
    assert answer.status_code == status, answer.text
    return answer.json()


def update(client: httpx.Client, folder: object, label: str, **more: Any) -> Any:
    post(client, "/init_weight_transfer_engine", {"init_info": {}})
    post(client, "/start_weight_update", {"is_checkpoint_format": True, **more})
    post(client, "/update_weights", {"update_info": {"weight_dir": str(folder)}})
    return post(client, "/finish_weight_update", {"weight_version": label})


def answered_with(client: httpx.Client) -> str:
    """The weights that an answer says it was computed with."""
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2}}
    version: str = post(client, "/inference/v1/generate", body)["choices"][0]["weight_version"]
    return version


def test_weights_are_updated_and_a_new_engine_has_them_or_stays_paused(
    allowed: pathlib.Path, trained: ServerProcess
) -> None:
    make_weights(allowed, "a", scale=1.0)
    second = make_weights(allowed, "b", scale=3.0)
    part = allowed / "part"
    part.mkdir()
    norm = load_file(second / "model.safetensors")["model.norm.weight"]
    save_file({"model.norm.weight": norm}, part / "model.safetensors")
    with trained.client() as client:
        answers = [ask(trained)]
        first = client.get("/weight_info").json()["version"]
        done = update(client, "a", "step-1")
        assert (done["weight_version"], done["version"]) == ("step-1", first + 1)
        assert answered_with(client) == "step-1"
        answers.append(ask(trained))
        # The last norm alone differs, so a part is as good as the whole.
        assert update(client, part, "step-2", partial=True)["version"] == first + 2
        answers.append(ask(trained))
        post(client, "/update_weights", {"weight_dir": str(second)})
        assert client.get("/weight_info").json()["version"] == first + 3
        assert answered_with(client) == str(first + 3)
        answers.append(ask(trained))
        assert len(set(answers[:3])) == 3
        assert answers[3] == answers[2]
        update(client, "a", "step-4")
        update(client, part, "step-5", partial=True)
        info = client.get("/weight_info").json()
        kill_engine(trained, client)
        assert ask(trained) == answers[2]
        assert client.get("/weight_info").json() == info
        assert answered_with(client) == "step-5"
        shutil.rmtree(part)
        kill_engine(trained, client)
        wait_until(lambda: client.get("/weight_info").json()["lost"])
        assert client.get("/is_paused").json() == {"is_paused": True}
        refused = client.post("/resume")
        assert refused.status_code == 409
        assert "step-5" in refused.json()["error"]["message"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, trained)
            wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 1)
            update(client, "a", "step-6")
            assert waiting.result(PATIENCE) == answers[1]
        assert client.get("/is_paused").json() == {"is_paused": False}


def test_what_is_wrong_with_an_update_is_named_and_old_weights_serve(
    allowed: pathlib.Path, trained: ServerProcess
) -> None:
    nan = make_weights(allowed, "nan", scale=float("nan"))
    (allowed / "empty").mkdir()
    with trained.client() as client:
        before = ask(trained)
        wrong = {"../outside": "must be a folder below", "/etc": "must be a folder below"}
        wrong |= {"empty": "holds neither", str(nan): "not finite"}
        for folder, reason in wrong.items():
            post(client, "/start_weight_update")
            body = {"update_info": {"weight_dir": folder}}
            assert reason in post(client, "/update_weights", body, 400)["error"]["message"]
            post(client, "/finish_weight_update", status=409)
        ipc = {"update_info": {"ipc_handles_pickled": "gASV"}}
        assert "not by NCCL or pickles" in post(client, "/update_weights", ipc, 400)["error"]["message"]
        nccl = {"init_info": {"master_address": "127.0.0.1", "master_port": 1}}
        assert "not by NCCL" in post(client, "/init_weight_transfer_engine", nccl, 400)["error"]["message"]
        post(client, "/update_weights", {"update_info": {"weight_dir": "good"}}, 409)
        post(client, "/start_weight_update")
        assert (
            "another update is open" in post(client, "/start_weight_update", status=409)["error"]["message"]
        )
        post(client, "/update_weights", {"update_info": {"weight_dir": "good"}})
        assert post(client, "/pause?mode=keep") == {"status": "paused"}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, trained)
            wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 1)
            post(client, "/finish_weight_update", {"weight_version": "new"})
            post(client, "/resume")
            assert waiting.result(PATIENCE) != before
        assert ask(trained) != before


def test_all_ranks_have_new_weights_and_so_have_those_that_follow_them(tmp_path: pathlib.Path) -> None:
    make_weights(tmp_path, "good", scale=1.0)
    ranks = ("--tensor-parallel-size", "2", "--threads", "1", "--weight-dir", str(tmp_path))
    with server_process(tmp_path, *OPTIONS, *ranks) as server:
        server.wait_until_ready()
        with server.client() as client:
            before = ask(server)
            assert answered_with(client) == str(client.get("/weight_info").json()["version"]) == "0"
            post(client, "/update_weights", {"weight_dir": "good"})
            after = ask(server)
            assert after != before
            kill_engine(server, client)
            assert ask(server) == after
            assert client.get("/weight_info").json()["version"] == 1
            assert post(client, "/sleep")["is_sleeping"]
            assert not post(client, "/wake_up")["is_sleeping"]
            assert ask(server) == after


def test_what_waits_for_a_sleeping_engine_ends_with_its_server(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, *OPTIONS, "--drain-timeout", "3600") as server:
        server.wait_until_ready()
        with server.client() as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
            post(client, "/sleep")
            waiting = pool.submit(client.post, "/v1/completions", json=PROMPT)
            wait_until(lambda: server.metrics()["nanoserve:num_requests_waiting"] == 1)
            server.signal(signal.SIGTERM)
            answer = waiting.result(PATIENCE)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert server.wait() == 0


def test_a_sleeping_server_lets_requests_wait_and_stays_asleep_through_a_death(
    trained: ServerProcess,
) -> None:
    with trained.client() as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        expected = ask(trained)
        assert "must be 1 or 2" in post(client, "/sleep?level=3", status=400)["error"]["message"]
        assert client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert ask(trained) == expected
        post(client, "/sleep?level=2")
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert "is already asleep" in post(client, "/sleep", status=409)["error"]["message"]
        assert "asleep" in post(client, "/resume", status=409)["error"]["message"]
        assert "must be of" in post(client, "/wake_up?tags=all", status=400)["error"]["message"]
        waiting = pool.submit(ask, trained)
        wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 1)
        assert post(client, "/wake_up?tags=weights") == {"is_sleeping": True}
        kill_engine(trained, client)
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        wait_until(lambda: trained.metrics()["nanoserve:num_requests_waiting"] == 1)
        assert not waiting.done()
        assert client.get("/health").status_code == 200
        assert post(client, "/wake_up?tags=kv_cache") == {"is_sleeping": False}
        assert waiting.result(PATIENCE) == expected
        post(client, "/wake_up")
        post(client, "/sleep?level=1")
        post(client, "/wake_up")
        assert ask(trained) == expected
