"""How many replicas a load wants, and what the directory keeps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nanoserve_cluster.entrypoints.ray import directory
from nanoserve_cluster.entrypoints.ray.directory import LIFETIME, Directory, Entry
from nanoserve_cluster.entrypoints.ray.scaling import scale_by_queue, wanted_replicas


@pytest.mark.parametrize(
    ("replicas", "running", "waiting", "rows", "wanted"),
    [
        (2, 0, 0, 20, 1),
        (2, 8, 0, 20, 1),
        (2, 16, 0, 20, 2),
        (2, 17, 0, 20, 3),
        (1, 10, 30, 10, 5),
        # memory is full at 5 rows of 10
        (1, 5, 5, 10, 3),
        # nothing runs yet, so rows are all that is known
        (1, 0, 16, 10, 2),
    ],
)
def test_each_replica_is_filled_to_four_fifths(
    replicas: int, running: float, waiting: float, rows: float, wanted: int
) -> None:
    assert wanted_replicas(replicas, running=running, waiting=waiting, rows=rows) == wanted


def test_the_policy_sums_what_replicas_report_and_keeps_its_number_where_none_does() -> None:
    metrics = {"running": {"a": 8, "b": 8}, "waiting": {"a": 4, "b": 0}, "rows": {"a": 10, "b": 10}}
    assert scale_by_queue(SimpleNamespace(aggregated_metrics=metrics, target_num_replicas=2)) == (4, {})
    assert scale_by_queue(SimpleNamespace(aggregated_metrics={}, target_num_replicas=3)) == (3, {})


async def test_the_directory_forgets_who_reports_no_more() -> None:
    now = 0.0
    kept = Directory(lambda: now)
    await kept.report(Entry("replica", "http://a"))
    now = LIFETIME - 1
    await kept.report(Entry("replica", "http://b"))
    assert [each.address for each in await kept.listed()] == ["http://a", "http://b"]
    now = LIFETIME + 1
    assert await kept.listed() == [Entry("replica", "http://b")]


async def test_a_directory_that_is_away_is_reported_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INTERVAL", 0)
    entry, heard = Entry("replica", "http://a"), list[Entry]()

    async def report(entry: Entry) -> None:
        heard.append(entry)
        if len(heard) < 3:
            raise RuntimeError("its actor has died")
        raise asyncio.CancelledError

    handle = SimpleNamespace(report=SimpleNamespace(remote=report))
    with pytest.raises(asyncio.CancelledError):
        await directory.keep_reporting(handle, entry)
    assert heard == [entry] * 3
