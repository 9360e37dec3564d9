"""Films the engine's page: a real run, recorded from a server's /live, is shown step by step and becomes a moving picture."""

from __future__ import annotations

import io
import json
import pathlib
import re
import tempfile
from typing import Any, Final, cast

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize

from tests.browser.chromium import chromium_path, started_chromium
from tests.process.server_process import server_process
from tools.take_screenshots import IMAGES, PATIENCE, SERVER, VIEW, load

LARGEST: Final = 1_500_000
"""Bytes of a moving picture at most."""
SCREEN: Final[ViewportSize] = {"width": 1200, "height": 900}
WIDTH: Final = 900
"""Pixels of the picture."""
FRAMES, FRAME_MS, STEPS_PER_FRAME = 70, 140, 2
BEFORE: Final = 60
"""Steps of the run before the first frame at least, so that there is something on the timeline."""
FEED: Final = """
const { fetch: real } = window;
let controller;
window.feed = (text) => controller.enqueue(new TextEncoder().encode(text));
window.fetch = (url, ...rest) => url !== "live" ? real(url, ...rest) : Promise.resolve(new Response(
  new ReadableStream({ start: (each) => { controller = each; } }), { headers: { "content-type": "text/event-stream" } }));
"""
"""The page reads /live from what the tool feeds it."""
_STEP: Final = re.compile(r'\["step",(\d+)')


def main() -> None:
    """Make `engine.webp`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(pathlib.Path(folder), *SERVER) as server,
        started_chromium(chromium_path()) as browser,
    ):
        server.wait_until_ready()
        events = record(server.url)
        save(film(browser, server.url, events), IMAGES / "engine.webp")


def record(url: str) -> list[str]:
    """The events of /live, from the first request on, until a sequence was preempted in the middle of what is filmed."""
    events: list[str] = []
    half, event, last = FRAMES * STEPS_PER_FRAME // 2, "", float("inf")
    client = httpx.Client(base_url=url, timeout=60, trust_env=False)
    with client, client.stream("GET", "/live") as stream, load(url):
        for line in stream.iter_lines():
            event += f"{line}\n"
            if line:
                continue
            events.append(event)
            step = last_step(event)
            if step > BEFORE + half and '["preempt",' in event:
                last = min(last, step + half)
            if step >= last:
                break
            event = ""
    return events


def last_step(event: str) -> int:
    """The number of the last step that an event tells of; 0 where it tells of none."""
    return int((_STEP.findall(event) or [0])[-1])


def film(browser: Browser, url: str, events: list[str]) -> list[Image.Image]:
    """A picture of the page after every few steps, of the last ones that were recorded."""
    context = browser.new_context(color_scheme="light", viewport=SCREEN, reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.add_init_script(FEED)
    page.goto(f"{url}/#engine")
    page.get_by_role("button", name="Show fewer steps").click()
    frames: list[Image.Image] = []
    clip: dict[str, float] = {}
    shown = max(map(last_step, events)) - FRAMES * STEPS_PER_FRAME
    for event in split(events):
        page.evaluate("text => feed(text)", event)
        if (step := last_step(event)) >= shown:
            shown = step + STEPS_PER_FRAME
            frames.append(take(page, step, clip))
    context.close()
    return frames[:FRAMES]


def split(events: list[str]) -> list[str]:
    """The events with one record of the step log each, so that no step is skipped."""
    found: list[str] = []
    for event in events:
        name, _, data = event.partition("\ndata: ")
        records = json.loads(data) if name == "event: trace" else None
        one_each = [
            f"{name}\ndata: {json.dumps([each], separators=(',', ':'))}\n\n" for each in records or ()
        ]
        found += [event] if records is None else one_each
    return found


def take(page: Page, step: int, clip: dict[str, float]) -> Image.Image:
    """The view from its numbers to the end of its pictures, once it shows a step; `clip` is found for the first one."""
    page.wait_for_function(f"step => {VIEW}.replay.step >= step", arg=step)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    if not clip:
        top, bottom = (
            page.locator(each).bounding_box() for each in (".engine-tiles", ".engine-timeline canvas")
        )
        assert top is not None
        assert bottom is not None
        clip |= {"x": 24, "y": top["y"] - 14, "width": SCREEN["width"] - 48}
        clip["height"] = bottom["y"] + bottom["height"] - clip["y"] + 4
    image = Image.open(io.BytesIO(page.screenshot(clip=cast("Any", clip), animations="disabled"))).convert(
        "RGB"
    )
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def save(frames: list[Image.Image], path: pathlib.Path) -> None:
    """Write them as one picture that repeats."""
    size = frames[0].size
    first, *rest = [each.crop((0, 0, *size)) for each in frames]
    first.save(path, save_all=True, append_images=rest, duration=FRAME_MS, loop=0, quality=45, method=4)
    weight = path.stat().st_size
    assert weight <= LARGEST, f"{path} has {weight} bytes, more than {LARGEST}"
    print(
        f"{path.relative_to(IMAGES.parents[1])}: {size[0]} x {size[1]}, {len(frames)} frames, {weight / 1000:.0f} kB"
    )


if __name__ == "__main__":
    main()
