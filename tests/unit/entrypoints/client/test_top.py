"""`nanoserve top` in this process: what is read from metrics, what is shown of it, and what is refused."""

from __future__ import annotations

import io
from http.server import ThreadingHTTPServer

import pytest
from rich.console import Console

from nanoserve.entrypoints.client.server import ProtocolError, open_server, read_address
from nanoserve.entrypoints.client.top import line, read_metrics, rows, view
from tests.http_thread import Answering, answering

COMMON = 'engine="0",model_name="tiny"'
PAGE = f"""
# TYPE nanoserve:engine_up gauge
nanoserve:engine_up{{{COMMON}}} 1
nanoserve:num_requests_running{{{COMMON}}} 5
vllm:num_requests_running{{{COMMON}}} 77
nanoserve:kv_cache_usage_perc{{{COMMON}}} 0.75
nanoserve:kv_blocks_cached{{{COMMON}}} 80
nanoserve:cache_config_info{{{COMMON},block_size="16",num_gpu_blocks="800"}} 1
nanoserve:prefix_cache_queries_total{{{COMMON}}} 200
nanoserve:prefix_cache_hits_total{{{COMMON}}} 50
nanoserve:requests_finished_total{{{COMMON},reason="stop"}} 2
nanoserve:requests_finished_total{{{COMMON},reason="length"}} 10
nanoserve:requests_finished_total{{{COMMON},reason="abort"}} 0
# TYPE nanoserve:time_to_first_token_seconds histogram
nanoserve:time_to_first_token_seconds_bucket{{{COMMON},le="0.1"}} 50
nanoserve:time_to_first_token_seconds_bucket{{{COMMON},le="0.5"}} 98
nanoserve:time_to_first_token_seconds_bucket{{{COMMON},le="1.0"}} 100
nanoserve:time_to_first_token_seconds_bucket{{{COMMON},le="+Inf"}} 100
nanoserve:generation_tokens_total{{{COMMON}}} """


def test_every_figure_is_read_from_the_metrics() -> None:
    before, now = (read_metrics(f"{PAGE}{count}\n".encode(), 0.01 * count) for count in (100, 300))
    shown = dict(rows(before, now))
    assert shown["running"] == "5"
    assert shown["generated"] == "100.0 tok/s"
    assert shown["KV blocks"] == "75% used, 80 cached of 800"
    assert shown["prefix hits"] == "25% of 200 tokens"
    assert shown["TTFT"] == "p50 <= 100 ms p99 <= 1,000 ms"
    assert shown["ITL"] == "p50 - p99 -"
    assert shown["finished"] == "length 10, stop 2"


def test_how_even_whole_experts_are_is_shown_where_there_are_some() -> None:
    counted = f"""
nanoserve:expert_balance{{{COMMON}}} 0.925
nanoserve:expert_tokens_total{{{COMMON},rank="0"}} 30
nanoserve:expert_tokens_total{{{COMMON},rank="1"}} 44"""
    now = read_metrics(f"{PAGE}1{counted}\n".encode(), 0.0)
    assert dict(rows(now, now))["experts"] == "balance 0.93 over ranks"
    assert "experts" not in dict(rows(*[read_metrics(f"{PAGE}1\n".encode(), 0.0)] * 2))


def test_a_counter_that_starts_again_is_no_negative_rate() -> None:
    before, now = (
        read_metrics(f"{PAGE}{count}\n".encode(), moment) for count, moment in ((300, 0.0), (5, 1.0))
    )
    assert dict(rows(before, now))["generated"] == "0.0 tok/s"
    assert dict(rows(before, before))["generated"] == "- tok/s"


def test_a_server_that_is_lost_keeps_its_numbers_and_cannot_steer_the_terminal() -> None:
    now, out = read_metrics(f"{PAGE}1\n".replace("tiny", "t\x1b[31m").encode(), 0.0), io.StringIO()
    Console(file=out, width=100).print(view("http://a", now, now, "gone\x1b[2J"))
    assert "t\\x1b[31m" in out.getvalue()
    assert "lost: gone\\x1b[2J" in out.getvalue()
    assert "75% used" in out.getvalue()
    assert line(now, now, "gone").endswith(" lost: gone")
    assert " ready | running 5 | " in line(now, now, "")


@pytest.mark.parametrize("page", [b"<html>", b"vllm:a 1\n", b"nanoserve:engine_up\n", b"\xff", b"a{b=1\n"])
def test_what_is_no_page_of_metrics_is_refused(page: bytes) -> None:
    with pytest.raises(ProtocolError, match="/metrics"):
        read_metrics(page, 0.0)


class Endless(Answering):
    """Answers without end, until the other side hangs up."""

    def reply(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"nanoserve:engine_up 1\n" * 10_000)
        except OSError:
            self.close_connection = True


def test_a_page_without_end_is_refused() -> None:
    refused = pytest.raises(ProtocolError, match="/metrics answers with more than 16,777,216 bytes")
    with (
        answering(ThreadingHTTPServer(("127.0.0.1", 0), Endless)) as url,
        open_server(read_address(url)) as client,
        refused,
    ):
        client.get("/metrics")


def test_what_took_longer_than_every_bucket_is_said() -> None:
    name = "nanoserve:inter_token_latency_seconds_bucket"
    page = f'{PAGE}1\n{name}{{{COMMON},le="0.1"}} 1\n{name}{{{COMMON},le="+Inf"}} 4\n'
    now = read_metrics(page.encode(), 0.0)
    assert dict(rows(now, now))["ITL"] == "p50 > 100 ms p99 > 100 ms"
