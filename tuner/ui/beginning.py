"""The first recipe: what is here and what the operator adds, kept as a preset and put on the bench."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tuner.paths import HomeError
from tuner.recipe.model import RecipeError
from tuner.session.first_preset import keep_preset, packaged_demo
from tuner.ui.screens.first_run import FirstRunScreen

if TYPE_CHECKING:
    from tuner.ui.app import TunerApp


async def begin_with_what_is_here(app: TunerApp) -> None:
    """Looks around this machine and asks what is missing; the demo is started where nothing runs."""
    begun = await app.push_screen_wait(FirstRunScreen(app.session.finder))
    if begun is None:
        return
    try:
        if begun.demo:
            app.load(await asyncio.to_thread(packaged_demo, app.session.home), "demo")
            if not app.running_name:
                app.workflow.begin_round()
        elif begun.recipe is not None:
            path = await asyncio.to_thread(keep_preset, app.session.home, begun.recipe)
            app.bench = app.bench.loaded(begun.recipe)
            app.say(f"{begun.words} Kept as preset {path.stem} in {path.parent}. R starts it.")
            app.go("tune")
    except (HomeError, RecipeError) as error:
        app.say(str(error), severity="error")
    except OSError as error:
        app.say(f"The preset cannot be written: {error.strerror or error}.", severity="error")
