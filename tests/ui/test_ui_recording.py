"""The recording of the README shows at each moment the screen of that moment."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree  # reads what was just written here

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recording():
    path = Path(__file__).parents[2] / "screenshots" / "recording.py"
    spec = importlib.util.spec_from_file_location("recording", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Words(App[None]):
    def compose(self) -> ComposeResult:
        yield Static("always", markup=False)
        yield Static("", id="words", markup=False)


def texts_at(svg: str, second: float) -> set[str]:
    """What is seen ``second`` seconds after the beginning."""
    seen = set()
    for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
        animation = group.find(f"{_SVG}animate")
        shown = "inline"
        if animation is not None:
            part = second / float(animation.get("dur").removesuffix("s"))
            times = [float(time) for time in animation.get("keyTimes").split(";")]
            place = max(i for i, time in enumerate(times) if time <= part)
            shown = animation.get("values").split(";")[place]
        if shown == "inline":
            seen |= {text.text.replace("\xa0", " ").strip() for text in group.findall(f"{_SVG}text")}
    return seen


async def test_each_moment_of_a_recording_shows_its_screen(recording) -> None:
    app, frames = Words(), []
    words = ["one <a&b>", "two 试一试", "one <a&b>", "four"]
    async with app.run_test(size=(30, 4)) as pilot:
        for text in words:
            app.query_one("#words", Static).update(text)
            await pilot.pause()
            frames.append(recording.Frame(app.export_screenshot(), 0.5))
    svg = recording.recording(frames)
    for number, text in enumerate(words):
        assert texts_at(svg, number * 0.5 + 0.25) == {"always", text}
    assert svg.count(">always<") == 1 and "http" not in svg.replace("http://www.w3.org/2000/svg", "")
