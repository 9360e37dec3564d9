"""The dashboard and the alerts ask for metrics and labels that a server really has."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.unit.entrypoints.server.http.app_world import app_world

DEPLOY = pathlib.Path(__file__).parents[3] / "deploy"
METRIC = re.compile(r"nanoserve:\w+")
FROM_PROMETHEUS = {"instance", "le", "reason"}
"""Labels that Prometheus adds; `le` is a histogram's, and refusals have a reason once there are any."""


@pytest.fixture(scope="module")
def page() -> str:
    with app_world() as world, world.client() as client:
        return client.get("/metrics").text


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def served(page: str) -> set[str]:
    """The names under which samples of every family come."""
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE):
        names |= (
            {f"{name}{each}" for each in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
        )
    return names


def panels(dashboard: Any) -> list[Any]:
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def expressions(dashboard: Any) -> Iterator[str]:
    for panel in panels(dashboard):
        yield from (each["expr"] for each in panel["targets"])
    yield from (each["expr"] for each in dashboard["annotations"]["list"])
    yield from (each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query")


def alert_rules() -> list[Any]:
    parsed = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in parsed["groups"] for rule in group["rules"]]


def test_every_metric_of_the_dashboard_is_served(dashboard: Any, page: str) -> None:
    asked = {name for each in expressions(dashboard) for name in METRIC.findall(each)}
    assert len(asked) > 25
    assert asked <= served(page)


def test_every_metric_of_the_alerts_is_served(page: str) -> None:
    asked = {name for rule in alert_rules() for name in METRIC.findall(rule["expr"])}
    assert len(asked) > 4
    assert asked <= served(page)


def test_what_is_served_is_shown(dashboard: Any, page: str) -> None:
    shown = " ".join(expressions(dashboard))
    families = set(re.findall(r"^# TYPE (nanoserve:\S+) ", page, re.MULTILINE))
    missing = {each for each in families if each not in shown}
    known = {
        "nanoserve:requests_accepted_total",
        "nanoserve:requests_finished_total",
        "nanoserve:kv_blocks_cached",
        "nanoserve:cache_config_info",
        "nanoserve:lora_requests_total",
        "nanoserve:expert_tokens_total",
        "nanoserve:expert_balance",
    }
    assert {each for each in missing if "class" not in each and each not in known} == set()


def test_labels_are_those_of_the_server(dashboard: Any, page: str) -> None:
    known = set(re.findall(r'[{,](\w+)="', page)) | FROM_PROMETHEUS
    for expression in [*expressions(dashboard), *(rule["expr"] for rule in alert_rules())]:
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            assert {each.strip() for each in labels.split(",")} - {"mode"} <= known
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_rates_are_of_counters_and_quantiles_of_histograms(dashboard: Any, page: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    for expression in [*expressions(dashboard), *(rule["expr"] for rule in alert_rules())]:
        for name in re.findall(r"(?:rate|increase)\((nanoserve:\w+)", expression):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert kinds.get(name) == "counter" or kinds.get(base) == "histogram", expression
        for inner in re.findall(r"histogram_quantile\([^,]+, (.*)\)", expression):
            assert "_bucket" in inner
            assert "le" in re.findall(r"by \(([^)]*)\)", inner)[0]


def test_panels_have_places_of_their_own(dashboard: Any) -> None:
    ids = [each["id"] for each in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (each["gridPos"] for each in dashboard["panels"])
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_every_panel_asks_the_chosen_data_source_and_says_what_it_is(dashboard: Any) -> None:
    for panel in panels(dashboard):
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_alerts_say_how_bad_and_what() -> None:
    for rule in alert_rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
