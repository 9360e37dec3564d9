"""`--no-ui`: a server without the page, and with everything else."""

from __future__ import annotations

import pathlib

from tests.browser.visits import Visits
from tests.process.server_process import ServerProcess, server_process


def test_without_the_page_its_paths_lead_nowhere(tmp_path: pathlib.Path) -> None:
    with server_process(tmp_path, "--no-ui") as started:
        started.wait_until_ready()
        with started.client() as client:
            assert client.get("/").status_code == 404
            assert client.get("/ui/main.js").status_code == 404
            assert client.get("/v1/models").status_code == 200


def test_with_the_page_a_browser_shows_it(visits: Visits, server: ServerProcess) -> None:
    page = visits.open(server.url)
    assert page.get_by_role("heading", name="nanoserve").is_visible()
    assert page.get_by_role("tab").count() == 2
