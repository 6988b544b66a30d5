"""The recipe of a server that runs, from its process."""

from __future__ import annotations

import psutil

from tuner.recipe.imported import Imported
from tuner.recipe.server_answer import from_process


def recipe_of(pid: int) -> Imported:
    """The recipe of process ``pid``. Raises RecipeError when it is no SGLang server, and what psutil raises."""
    process = psutil.Process(pid)
    words, environ = process.cmdline(), process.environ()
    # The name as started: the file behind a virtual environment's link has none of its packages.
    python = words[0] if words and words[0].startswith("/") else process.exe()
    return from_process(words, environ, python)
