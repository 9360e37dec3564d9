"""Makes the pictures of the README and the documents with a real browser: of a real server under load, and of the experiments."""

from __future__ import annotations

import contextlib
import io
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, Final

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from docs.examples.watch import EXPERIMENTS
from tests.browser.chromium import chromium_path, started_chromium
from tests.browser.engine_page import NEXT_FRAMES
from tests.process.server_process import server_process

IMAGES: Final = pathlib.Path(__file__).parents[1] / "docs" / "images"
LARGEST: Final = 300_000
"""Bytes of a picture at most."""
SERVER: Final = (
    "--num-kv-blocks=84",
    "--max-model-len=1024",
    "--max-num-seqs=8",
    "--max-num-batched-tokens=96",
)
"""A small pool and small steps: what is rare in a large one happens all the time."""
DESK: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
PATIENCE: Final = 120_000
"""Milliseconds for everything to have happened."""
VIEW: Final = "document.querySelector('#engine-view').view"


def main() -> None:
    """Take those of the page, or with the argument `watch` those of the experiments."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["watch"]:
        draw_experiments()
    else:
        take_pages()


def draw_experiments() -> None:
    """The drawing of each experiment."""
    for name in EXPERIMENTS:
        path = IMAGES / f"watch-{name}.png"
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "docs.examples.watch", name, "--png", str(path)], check=True
        )
        shrink(Image.open(path), path)


def take_pages() -> None:
    """The playground, and the engine under load."""
    expect.set_options(timeout=PATIENCE)
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(pathlib.Path(folder), *SERVER) as server,
        started_chromium(chromium_path()) as browser,
    ):
        server.wait_until_ready()
        for scheme in ("light", "dark"):
            take_playground(browser, server.url, scheme)
        with load(server.url):
            for scheme in ("light", "dark"):
                take_engine(browser, server.url, f"engine-{scheme}", color_scheme=scheme, viewport=DESK)
            take_engine(
                browser,
                server.url,
                "engine-phone",
                color_scheme="dark",
                viewport=PHONE,
                device_scale_factor=2,
            )


def take_playground(browser: Browser, url: str, scheme: str) -> None:
    """A chat with its tokens coloured, and the alternatives of one of them."""
    page = open_page(browser, f"{url}/#playground", color_scheme=scheme, viewport=DESK)
    expect(page.locator("#served")).to_contain_text("built-in")
    page.locator("#p-seed").fill("7")
    page.locator("#p-max_tokens").fill("120")
    page.locator("#prompt").fill("Tell me a story about a fox and a lamp.")
    page.locator("#send").click()
    answer = page.get_by_role("article", name="Answer")
    expect(answer).to_have_attribute("aria-busy", "false")
    page.evaluate("scrollTo(0, 0)")
    answer.get_by_role("option").nth(18).hover()
    expect(page.get_by_role("tooltip")).to_be_visible()
    save(page, f"playground-{scheme}")
    page.context.close()


def take_engine(browser: Browser, url: str, name: str, **options: Any) -> None:
    """The engine when there is something of everything: chunks, hits, shared blocks, a preemption some steps ago."""
    page = open_page(browser, f"{url}/#engine", reduced_motion="reduce", **options)
    wait_for_steps(page, 140)
    page.wait_for_function(
        f"seen => {VIEW}.replay.preemptions > seen", arg=page.evaluate(f"{VIEW}.replay.preemptions")
    )
    wait_for_steps(page, 40)
    page.wait_for_function(f"() => [...{VIEW}.replay.references[0].values()].some((count) => count > 2)")
    page.get_by_role("button", name="Pause").click()
    while page.evaluate(f"{VIEW}.timeline.isCrowd"):
        page.get_by_role("button", name="Show fewer steps").click()
        page.evaluate(NEXT_FRAMES)
    if options["viewport"] == PHONE:
        page.locator(".engine-timeline").evaluate("each => each.scrollIntoView()")
        save(page, name)
    else:
        panel = page.locator(".engine-timeline").bounding_box()
        assert panel is not None
        height = panel["y"] + panel["height"] + 12
        save(page, name, full_page=True, clip={"x": 0, "y": 0, "width": DESK["width"], "height": height})
    page.context.close()


def wait_for_steps(page: Page, count: int) -> None:
    """Until the engine has made so many more."""
    until = page.evaluate(f"{VIEW}.replay.step") + count
    page.wait_for_function(f"until => {VIEW}.replay.step >= until", arg=until)


def open_page(browser: Browser, url: str, **options: Any) -> Page:
    """A page in a window of its own."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    if url.endswith("#engine"):
        page.wait_for_function(f"() => {VIEW}.replay.step > 0")
    return page


@contextlib.contextmanager
def load(url: str) -> Iterator[None]:
    """Clients that come and go: long prompts, families that share a prompt, and questions with a common beginning."""
    stop = threading.Event()
    clients = [threading.Thread(target=ask, args=[url, stop, number], daemon=True) for number in range(9)]
    for each in clients:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in clients:
            each.join(30)


def ask(url: str, stop: threading.Event, number: int) -> None:
    """One client, until it is told to stop."""
    dice = random.Random(number)
    preface = list(range(1000, 1080))
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        while not stop.wait(dice.random() * 0.3):
            prompt = [dice.randrange(4, 4000) for _ in range(dice.choice([8, 24, 60, 240, 240]))]
            body = {
                "model": "built-in",
                "prompt": (preface if number % 2 else []) + prompt,
                "max_tokens": dice.randint(40, 140),
                "n": 4 if number % 5 == 0 else 1,
                "ignore_eos": True,
                "seed": number,
            }
            client.post("/v1/completions", json=body).raise_for_status()


def save(page: Page, name: str, **options: Any) -> None:
    """The page as a PNG."""
    shrink(Image.open(io.BytesIO(page.screenshot(animations="disabled", **options))), IMAGES / f"{name}.png")


def shrink(image: Image.Image, path: pathlib.Path) -> None:
    """Write a PNG of few bytes: 256 colours are enough for flat areas and text."""
    image.convert("RGB").quantize(
        colors=256, method=Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE
    ).save(path, optimize=True)
    size = path.stat().st_size
    assert size <= LARGEST, f"{path} has {size} bytes, more than {LARGEST}"
    print(f"{path.relative_to(IMAGES.parents[1])}: {image.width} x {image.height}, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
