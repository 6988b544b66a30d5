"""A need that the recipe states is the default of ``tuner solve`` and ``tuner auto``."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from tuner.cli import main
from tuner.cli.needs import needed
from tuner.planner.need import Need
from tuner.recipe.model import TunerSettings
from tuner.session.needs import Stated, stated_need, with_wishes, without_wishes

RECIPE = """[server]
model_path = "demo/hybrid-27b"
python = "simulator"
[memory]
mem_fraction_static = 0.86
mamba_ssm_dtype = "bfloat16"
[tuner]
model_shape = "qwen3.8-27b-fp8-text"
"""
NEED = "need_input_tokens = 100000\nneed_agents = 2\nneed_warm_prefixes = 1\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return tmp_path / "mine.toml"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(words))
    return result.exit_code, result.stdout + result.stderr


def solved(recipe: Path, *words: str) -> dict[str, object]:
    _, out = run("solve", str(recipe), "--free-before", "46.83", "--free-after", "19.29", "--json", *words)
    return json.loads(out)  # type: ignore[no-any-return]


def test_solve_takes_what_is_not_asked_from_the_recipe(recipe: Path) -> None:
    recipe.write_text(RECIPE + NEED)
    asked = ("--input", "100000", "--agents", "2", "--warm-prefixes", "1")
    assert solved(recipe) == solved(recipe, *asked)
    assert solved(recipe, "--agents", "1") != solved(recipe)


@pytest.mark.parametrize("command", ["solve", "auto"])
def test_without_a_need_both_ways_to_give_one_are_named(recipe: Path, command: str) -> None:
    recipe.write_text(RECIPE)
    status, said = run(command, str(recipe))
    assert status == 2 and "Give --input, or need_input_tokens in the recipe's [tuner] table." in said
    status, said = run(command, str(recipe), "--input", "9K")
    assert status == 2 and "Give --agents, or need_agents in the recipe's [tuner] table." in said


def test_an_answer_that_the_recipe_states_goes_before_that_of_the_command() -> None:
    settings = TunerSettings(need_input_tokens=9, need_agents=3, need_output_tokens=500)
    assert needed(Stated(), settings, output_tokens=64).output_tokens == 500
    assert needed(Stated(output_tokens=7), settings, output_tokens=64).output_tokens == 7
    silent = msgspec.structs.replace(settings, need_output_tokens=None)
    assert needed(Stated(), silent, output_tokens=64).output_tokens == 64


def test_what_auto_was_asked_for_is_stated_by_the_recipe_of_its_rounds() -> None:
    before = TunerSettings(model_shape="s", headroom_gib=4.4, slo_ttft_s=9.0)
    need = Need(input_tokens=5, agents=2, warm_prefixes=1, output_tokens=64)
    after = with_wishes(before, need, itl_s=0.05)
    assert stated_need(after) == need
    # What is not asked for stays.
    assert (after.headroom_gib, after.slo_ttft_s, after.slo_itl_ms) == (4.4, 9.0, 50.0)
    assert without_wishes(after) == without_wishes(before)


def test_options_go_before_the_recipe() -> None:
    settings = TunerSettings(need_input_tokens=9, need_agents=3, need_warm_prefixes=2)
    assert needed(Stated(), settings) == stated_need(settings) == Need(input_tokens=9, agents=3, warm_prefixes=2)
    asked = Stated(input_tokens=5, warm_prefixes=0, output_tokens=64, headroom_gib=1.0)
    assert needed(asked, settings) == Need(input_tokens=5, agents=3, output_tokens=64, headroom_gib=1.0)
    assert stated_need(TunerSettings(need_agents=3)) is None
    with pytest.raises(click.UsageError, match="--agents"):
        needed(Stated(input_tokens=5), TunerSettings())


def test_a_wish_is_no_part_of_what_is_started() -> None:
    started = TunerSettings(model_shape="s", launcher="srun", simulator={"speed": 1})
    wishes = {"headroom_gib": 1.0, "slo_ttft_s": 2.0, "slo_itl_ms": 3.0}
    wished = msgspec.structs.replace(started, need_input_tokens=9, need_agents=1, need_warm_prefixes=1, **wishes)
    assert without_wishes(wished) == started
