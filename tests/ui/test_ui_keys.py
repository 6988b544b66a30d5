"""Keys: each one explained, each one that a screen has can be changed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from textual.binding import Binding
from textual.dom import DOMNode
from uifakes import FakeSession
from uiscreen import Opened, screen_text, told, until

import tuner.ui
from tuner.ui.app import TunerApp
from tuner.ui.keys import named_keys
from tuner.ui.widgets.slider import Slider


def owners() -> Iterator[type[DOMNode]]:
    """Everything of the app that has keys of its own."""
    for module in pkgutil.walk_packages(tuner.ui.__path__, "tuner.ui."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ == module.name and issubclass(found, DOMNode) and "BINDINGS" in vars(found):
                yield found


@pytest.mark.parametrize("owner", list(owners()), ids=lambda owner: owner.__name__)
def test_every_key_says_what_it_does(owner: type[DOMNode]) -> None:
    for binding in owner.BINDINGS:
        assert isinstance(binding, Binding)
        assert binding.description, binding.key
        assert binding.tooltip, binding.key


def test_no_two_keys_of_the_app_have_one_name() -> None:
    for owner in owners():
        named = [b.id for b in owner.BINDINGS if isinstance(b, Binding) and b.id]
        assert len(named) == len(set(named)), owner


def test_the_keys_of_knobs_of_the_work_and_of_the_first_run_can_be_changed_too() -> None:
    names = named_keys(TunerApp).keys()
    assert {"restart", "slider.more", "choice.list", "lines.end", "work.abort", "first.open", "log.search"} <= names


async def test_a_knobs_key_from_the_settings_turns_it_and_is_the_one_that_help_names(
    session: FakeSession, opened: Opened
) -> None:
    (session.home.config / "app.toml").write_text('[keys]\n"slider.more" = "l"\n')
    async with opened() as (app, pilot):
        app.screen.query_one("#mamba_full_memory_ratio", Slider).focus()
        await pilot.press("l", "right")
        assert app.bench.draft.flags["mamba_full_memory_ratio"] == pytest.approx(0.95)
        await pilot.press("question_mark")
        await until(pilot, lambda: any("  l " in line and "More" in line for line in screen_text(app).splitlines()))


@pytest.mark.parametrize(
    ("keys", "lost"),
    [
        ('restart = "n"', "note"),
        ('restart = "n"\nnote = "m"', ""),
        ('restart = "f9"\nnote = "f9"', "note, restart"),
        ('"slider.more" = "n"', ""),
    ],
)
async def test_an_action_whose_key_was_given_away_is_said(
    session: FakeSession, opened: Opened, keys: str, lost: str
) -> None:
    (session.home.config / "app.toml").write_text(f"[keys]\n{keys}\n")
    async with opened() as (app, _):
        assert (f"another action has the key of {lost}:" in told(app)) is bool(lost)


async def test_the_palette_lists_what_the_screen_can_do_with_its_key(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Search" in screen_text(app))
        await pilot.press(*"undo")
        await until(pilot, lambda: "Take the last change of a knob back" in screen_text(app))
