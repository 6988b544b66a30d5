"""What the command palette lists: every key of the screen and of the app, with its description."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.screen import Screen

#: Actions on the server, which one that is only looked at does not take: its screens do not offer them, and the keys
#: say why.
ON_THE_SERVER = frozenset({"restart", "verify", "stop", "auto"})


def commands(app: App[Any], screen: Screen[Any], without: Collection[str] = ()) -> Iterator[SystemCommand]:
    """The keys that work now but for the actions ``without``; those that move inside a widget are no commands."""
    seen = set(without)
    for active in screen.active_bindings.values():
        binding = active.binding
        # A screen shows some keys of the app beside its own.
        action = binding.action.removeprefix("app.")
        if not binding.tooltip or not binding.description or action in seen or not active.enabled:
            continue
        if active.node is not app and active.node is not screen:
            continue
        seen.add(action)
        key = binding.key_display or app.get_key_display(binding)
        run = partial(app.run_action, binding.action, active.node)
        yield SystemCommand(binding.description, f"{binding.tooltip} · key {key}", run)
    yield SystemCommand("Theme", "Choose the colours among all themes", app.action_change_theme)
