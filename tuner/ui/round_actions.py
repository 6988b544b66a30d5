"""What an operator does to a round from any screen: note, export, mark."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Literal

from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round

if TYPE_CHECKING:
    from tuner.recipe.model import Recipe
    from tuner.ui.app import TunerApp
    from tuner.ui.screens.export import Written

#: Seconds that the path of a written file and what to do with it stay on the screen.
_READ_S = 12.0
Verdict = Literal["keep", "reject"]


async def edit_note(app: TunerApp) -> None:
    """Edits the note of the round meant."""
    from tuner.ui.screens.note import NoteScreen  # not opened, it costs nothing at the first paint

    round_ = await _meant(app)
    if round_ is None:
        return
    note = await app.push_screen_wait(NoteScreen(round_.name, round_.note))
    if note is not None and await _kept(app, partial(app.session.history.set_note, round_.number, note)):
        app.say(f"Note on {round_.name} saved.")


async def export_round(app: TunerApp, fmt: str = "toml") -> None:
    """Writes the round meant to a file, as ``fmt`` unless another format is chosen."""
    from tuner.ui.screens.export import ExportScreen  # as above

    round_ = await _meant(app)
    if round_ is None:
        return
    screen = ExportScreen(round_.name, partial(app.session.export, round_.number), fmt=fmt)
    _say_written(app, round_.name, await app.push_screen_wait(screen), simulated=round_.simulated)


async def export_preset(app: TunerApp, name: str, recipe: Recipe) -> None:
    """Writes a preset to a file."""
    from tuner.session.export import export_recipe
    from tuner.ui.screens.export import ExportScreen

    screen = ExportScreen(name, partial(export_recipe, recipe), preset=True)
    _say_written(app, name, await app.push_screen_wait(screen), simulated=recipe.simulated)


def _say_written(app: TunerApp, name: str, written: Written | None, *, simulated: bool) -> None:
    """Where it went and how it is put to use, for long enough to copy it."""
    if written is not None:
        mark = " It is marked as simulated." if simulated else ""
        app.notify(f"{name} is written to {written.path}.{mark} {written.next}".rstrip(), markup=False, timeout=_READ_S)


async def mark_round(app: TunerApp, verdict: Verdict) -> None:
    """Marks the round meant; the same mark again takes it away."""
    round_ = await _meant(app)
    if round_ is None:
        return
    wanted = "" if round_.verdict == verdict else verdict
    if await _kept(app, partial(app.session.history.set_verdict, round_.number, wanted)):
        app.say(f"{round_.name} is marked: {wanted}." if wanted else f"The mark of {round_.name} is gone.")


async def _meant(app: TunerApp) -> Round | None:
    """The round chosen in the list; elsewhere the running one, else the newest. Says when there is none."""
    number = app.chosen if app.current_mode in ("rounds", "compare") else None
    if number is None and app.running_round is not None:
        number = app.running_round.number
    history = app.session.history
    try:
        round_ = await asyncio.to_thread(history.last if number is None else partial(history.get, number))
    except HistoryError as error:
        app.say(str(error), severity="error")
        return None
    if round_ is None:
        app.say("There is no round yet. R starts one.", severity="warning")
    return round_


async def _kept(app: TunerApp, write: partial[None]) -> bool:
    try:
        await asyncio.to_thread(write)
    except HistoryError as error:
        app.say(str(error), severity="error")
        return False
    app.history_version += 1
    return True
