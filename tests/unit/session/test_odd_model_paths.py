"""A model path that no file system takes is answered with a sentence, wherever it is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.findings import FindingId
from tuner.modelcard import ModelError
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.guard import preflight
from tuner.server.interpreter import resolve_interpreter
from tuner.session.fingerprint import fingerprint
from tuner.session.planning import Given, shape_for

ODD = ["~nosuch/x", "a" * 5000, f"{'a' * 3000}/b"]


@pytest.mark.parametrize("path", ODD)
def test_no_odd_model_path_ends_a_command(path: str, tmp_path: Path) -> None:
    recipe = Recipe(flags={"model_path": path, "port": 39_998}, python="/nowhere/python")
    assert fingerprint(recipe) == {}
    with pytest.raises(ModelError, match="not on this machine"):
        shape_for(recipe, Given())
    found = {finding.id for finding in preflight(recipe, None, [], Home.at(tmp_path))}
    assert (FindingId.MODEL_MISSING in found) == (path != ODD[2])
    assert resolve_interpreter("~nosuch/python", {}) is None
