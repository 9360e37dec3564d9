"""nanoserve on Ray Serve, on one machine with several raylets: are answers right, and what do failures cost?

    python -m tools.ray_check [start streams disconnects engine node redeploy scale ctrl-c]

It needs `pip install 'nanoserve[ray]'`, and takes some minutes. Each check is as `docs/ray.md` says; the exit code is 0 where all
hold. Times and rates are printed and judge nothing, as they depend on the machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster

from nanoserve_cluster.entrypoints.ray import app
from nanoserve_cluster.entrypoints.ray.directory import Entry
from tools.chats import Reply, ask, ask_all, body

PROXY, DIRECT = 8765, 8766
PATHS = {
    "Ray's proxy": f"http://127.0.0.1:{PROXY}",
    "the router's port": f"http://{ray.util.get_node_ip_address()}:{DIRECT}",
}
ARGUMENTS = {
    "replicas": "2",
    "device": "cpu",
    "spare": "false",
    "deterministic": "true",
    "direct_port": str(DIRECT),
}
LONG = 400
STREAMS, AT_ONCE, DISCONNECTS = 200, 32, 100


def is_ready(address: str) -> bool:
    """True if a server takes requests."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=5) as answer:  # noqa: S310 - our own
            return bool(answer.status == 200)
    except OSError:
        return False


def listed(role: str = "replica") -> list[str]:
    """The addresses of what is ready."""
    found: list[Entry] = (
        serve.get_deployment_handle("directory", "nanoserve").listed.remote().result(timeout_s=20)
    )
    return [each.address for each in found if each.role == role and is_ready(each.address)]


async def replicas() -> list[str]:
    """Ask a server from within an event loop whether it takes requests."""
    return await asyncio.to_thread(listed)


def wait_for(wanted: Callable[[], bool], seconds: float, what: str) -> float:
    """The seconds until something is so; ends the program where it never is."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if wanted():
                return time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - what is asked may just be restarting
            print(f"  (waiting: {type(error).__name__})")
        time.sleep(0.2)
    sys.exit(f"NOT within {seconds:.0f} s: {what}")


async def metric(url: str, name: str, part: str = "") -> float:
    """The sum of a metric's samples, of those with a label that has such a part."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as page:
        lines = (await page.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and part in line)


def deploy(**changes: str) -> None:
    """The application, with changed arguments; returns when Ray says that it runs."""
    serve.run(app(ARGUMENTS | changes), name="nanoserve")


@attrs.frozen
class Machines:
    """The cluster that the checks are run on."""

    cluster: Any

    def raylet_of(self, title: str) -> list[Any]:
        """The nodes where a process with such a title runs."""
        return [
            node
            for node in self.cluster.worker_nodes
            if any(title in " ".join(each.cmdline()) for each in _children(node))
        ]

    def add(self) -> None:
        """One more, with room for one replica."""
        self.cluster.add_node(num_cpus=1, object_store_memory=80 << 20)


def _children(node: Any) -> list[psutil.Process]:
    return psutil.Process(node.all_processes["raylet"][0].process.pid).children()


async def check_start(_machines: Machines) -> bool:
    """From nothing to the first token."""
    began = time.monotonic()
    await asyncio.to_thread(deploy)
    (reply,) = await ask_all(PATHS["Ray's proxy"], [body(0)], 1)
    print(f"from serve.run to the first answer: {time.monotonic() - began:.1f} s")
    await asyncio.to_thread(wait_for, lambda: len(listed()) == 2, 30, "two replicas")
    return reply.is_whole


async def check_streams(_machines: Machines) -> bool:
    """Texts through Ray are those of a replica that is asked itself; what the way costs."""
    bodies = [body(number) for number in range(STREAMS)]
    replica = (await replicas())[0]
    truths = [each.text for each in await ask_all(replica, bodies, 8)]
    is_fine = True
    paths = {"a replica itself": replica} | PATHS
    for name, url in paths.items():
        alone = await ask_all(url, [body(1000 + number, 4) for number in range(40)], 1)
        began = time.monotonic()
        replies = await ask_all(url, bodies, AT_ONCE)
        seconds = time.monotonic() - began
        wrong = sum(reply.text != truth for reply, truth in zip(replies, truths, strict=True))
        tokens = STREAMS * bodies[0]["max_tokens"]
        first = statistics.median(each.first for each in alone) * 1e3
        crowd = statistics.median(each.first for each in replies) * 1e3
        print(
            f"{name}: TTFT p50 alone {first:.1f} ms, at {AT_ONCE} streams {crowd:.1f} ms; {tokens / seconds:.0f} tok/s; "
            f"{wrong} of {STREAMS} texts differ"
        )
        is_fine &= wrong == 0 and all(each.is_whole for each in replies)
    return is_fine


async def check_disconnects(_machines: Machines) -> bool:
    """A client that leaves after the first piece frees its row."""
    addresses, is_fine = await replicas(), True

    async def total(name: str, part: str = "") -> float:
        return sum([await metric(each, name, part) for each in addresses])

    async def aborted() -> float:
        return await total("nanoserve:requests_finished_total{", '"abort"')

    for path, url in ({"a replica itself": addresses[0]} | PATHS).items():
        before, generated, waits = (
            await aborted(),
            await total("vllm:generation_tokens_total{"),
            list[float](),
        )
        for number in range(DISCONNECTS):
            async with aiohttp.ClientSession() as session:
                answer = await session.post(f"{url}/v1/chat/completions", json=body(2000 + number, LONG))
                await answer.content.readany()
                answer.close()
            began = time.monotonic()
            while await aborted() <= before + number and time.monotonic() - began < 10:
                pass  # reading the metrics waits
            waits.append(time.monotonic() - began)
        freed, free = await aborted() - before, sum(each <= 1.0 for each in waits)
        tokens = (await total("vllm:generation_tokens_total{") - generated) / DISCONNECTS
        print(
            f"clients that leave {path}: {freed:.0f} of {DISCONNECTS} rows freed by it, {free} within 1 s (median "
            f"{statistics.median(waits):.2f} s, slowest {max(waits):.2f} s), after {tokens:.0f} of {LONG} tokens on average"
        )
        is_fine &= freed == DISCONNECTS
    return is_fine


async def check_engine(_machines: Machines) -> bool:
    """An engine that is killed comes back within its replica."""
    replica = (await replicas())[0]
    port = int(replica.rpartition(":")[2])
    pid = next(
        each.pid
        for each in psutil.net_connections("tcp")
        if each.laddr and each.laddr.port == port and each.status == "LISTEN"
    )
    engine = psutil.Process(pid).children()[0]
    engine.send_signal(signal.SIGKILL)
    replies = await ask_all(
        PATHS["Ray's proxy"], [body(3000 + number, stream=False) for number in range(20)], 4
    )
    back = await asyncio.to_thread(
        wait_for, lambda: replica in listed() and not engine.is_running(), 60, "the engine is back"
    )
    (again,) = await ask_all(replica, [body(1)], 1)
    print(
        f"an engine killed: {sum(not each.is_whole for each in replies)} of 20 failed meanwhile; ready again after {back:.1f} s"
    )
    return again.is_whole and all(each.is_whole for each in replies)


async def check_node(machines: Machines) -> bool:
    """A node that is gone: whole answers are given by another replica, streams end with an error."""
    routed = machines.raylet_of(":router")
    node = next(each for each in machines.raylet_of(":replica") if each not in routed)
    url = PATHS["Ray's proxy"]
    whole = asyncio.create_task(ask_all(url, [body(4000 + n, 40, stream=False) for n in range(60)], 8))
    streams = asyncio.create_task(ask_all(url, [body(5000 + n, LONG) for n in range(8)], 8))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(machines.cluster.remove_node, node, allow_graceful=False)
    replies, streamed = await whole, await streams
    failed = [each.error for each in replies if not each.is_whole]
    broken = [each for each in streamed if not each.is_whole]
    print(f"a node removed: {len(failed)} of {len(replies)} whole answers failed {failed[:2]}; {len(broken)} of {len(streamed)} streams broke off, with {sorted({each.error for each in broken})}")  # fmt: skip
    machines.add()
    healed = await asyncio.to_thread(wait_for, lambda: len(listed()) == 2, 120, "two replicas again")
    print(f"two replicas again after {healed:.1f} s")
    return not failed and bool(broken) and all(each.error == "replica_lost" for each in broken)


async def check_redeploy(_machines: Machines) -> bool:
    """Everything is replaced under load."""
    done, before = asyncio.Event(), await replicas()

    async def load(url: str, first: int) -> list[Reply]:
        replies: list[Reply] = []
        async with aiohttp.ClientSession() as session:
            while not done.is_set():
                number = first + len(replies)
                replies.append(await ask(session, url, body(number, stream=number % 2 == 0)))
        return replies

    loads = [asyncio.create_task(load(url, 10000 * (n + 1))) for n in range(3) for url in PATHS.values()]
    began = time.monotonic()
    await asyncio.to_thread(deploy, max_waiting_requests="1000")
    await asyncio.to_thread(
        wait_for, lambda: len(listed()) == 2 and not set(listed()) & set(before), 120, "new replicas"
    )
    done.set()
    results = await asyncio.gather(*loads)
    replies = [reply for each in results for reply in each]
    failed = [each.error for each in replies if not each.is_whole]
    direct = sum(not reply.is_whole for each in results[1::2] for reply in each)
    print(
        f"redeployed in {time.monotonic() - began:.1f} s: {len(failed)} of {len(replies)} failed, "
        f"{direct} of them at the router's port {failed[:2]}"
    )
    return not failed


async def check_scale(_machines: Machines) -> bool:
    """A queue makes a second replica."""
    changes = {"replicas": "1", "max_replicas": "2", "upscale_delay": "3", "max_num_seqs": "2"}
    await asyncio.to_thread(serve.delete, "nanoserve")  # or Ray would keep the number of replicas
    await asyncio.to_thread(deploy, **changes)
    await asyncio.to_thread(wait_for, lambda: len(listed()) == 1, 60, "one replica")
    began = time.monotonic()
    load = asyncio.create_task(ask_all(PATHS["Ray's proxy"], [body(6000 + n, LONG) for n in range(200)], 24))
    seconds = await asyncio.to_thread(wait_for, lambda: len(listed()) == 2, 120, "a second replica")
    print(f"scaled from 1 to 2 in {seconds:.1f} s ({time.monotonic() - began:.1f} s of load)")
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    return True


def check_ctrl_c() -> bool:
    """`serve run` that is interrupted leaves no process."""
    arguments = ("replicas=1", "device=cpu", f"direct_port={DIRECT}")
    command = (
        str(Path(sys.executable).with_name("serve")),
        "run",
        "nanoserve_cluster.entrypoints.ray:app",
        *arguments,
    )
    ours = {each.pid for each in psutil.process_iter()}
    process = subprocess.Popen(  # noqa: S603 - our own
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(lambda: asyncio.run(metric("http://127.0.0.1:8000", "vllm:")) >= 0, 120, "serve run")
    started = [each for each in psutil.process_iter() if each.pid not in ours and _is_of(each, process.pid)]
    os.kill(process.pid, signal.SIGINT)
    process.wait(90)
    _, left = psutil.wait_procs(started, timeout=15)
    print(
        f"serve run interrupted: {len(left)} of {len(started)} processes left {[each.cmdline()[:4] for each in left]}"
    )
    return not left


def _is_of(process: psutil.Process, pid: int) -> bool:
    try:
        return pid in {process.pid, *(each.pid for each in process.parents())}
    except psutil.NoSuchProcess:
        return False


CHECKS: dict[str, Callable[[Machines], Coroutine[Any, Any, bool]]] = {
    "start": check_start,
    "streams": check_streams,
    "disconnects": check_disconnects,
    "engine": check_engine,
    "node": check_node,
    "redeploy": check_redeploy,
    "scale": check_scale,
}


def main() -> int:
    """Run what is named, or all."""
    names = sys.argv[1:] or [*CHECKS, "ctrl-c"]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    results: dict[str, bool] = {}
    if set(names) & CHECKS.keys():
        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20},
        )
        machines = Machines(cluster)
        for _ in range(2):
            machines.add()
        ray.init(address=cluster.address, namespace="serve", log_to_driver="RAY_CHECK_LOGS" in os.environ)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PROXY})
        try:
            for name in dict.fromkeys(["start", *(each for each in names if each in CHECKS)]):
                results[name] = asyncio.run(CHECKS[name](machines))
        finally:
            serve.shutdown()
            ray.shutdown()
            cluster.shutdown()
    if "ctrl-c" in names:
        results["ctrl-c"] = check_ctrl_c()
    print(
        ", ".join(
            f"{name}: {'as it should be' if is_fine else 'NOT as it should be'}"
            for name, is_fine in results.items()
        )
    )
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
