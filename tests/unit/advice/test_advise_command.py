"""``tuner advise``: what an operator types and reads."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from advice_cases import inputs, look
from article_series import looks
from click.testing import CliRunner

from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import PREFIX_REUSE
from tuner.cli import main
from tuner.cli.advise import run_line
from tuner.measure.model import Physics
from tuner.paths import Home, find_preset
from tuner.planner.need import Need
from tuner.recipe import load, merge_set
from tuner.recipe.model import Recipe, TunerSettings
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.session.advising import advised_round, question
from tuner.session.needs import stated_need


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return Home.find()


def demo(**flags: object) -> Recipe:
    return load(find_preset("demo", Home.find())).with_flags(flags)


def kept(history: History, recipe: Recipe, state: RoundState = RoundState.VERIFIED, **fields: object) -> Round:
    ready = None if state is RoundState.FAILED else 40.0
    draft = Round(number=0, started_at=1.0, state=state, recipe=recipe, simulated=True, ready_seconds=ready, **fields)  # type: ignore[arg-type]
    return history.open_round(draft)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["advise", *words])
    return result.exit_code, result.stdout, result.stderr


def test_a_ranked_list_with_a_line_to_paste(home: Home) -> None:
    with History(home.database) as history:
        kept(history, demo(mem_fraction_static=0.8))
        history.add_samples(1, looks(kv_total=180_000, slots_total=60, hours=3))
    status, out, _ = run()
    assert status == 0
    assert out.startswith("After r1 (simulated): Seen at work: 3 requests at once, 68,431 tokens the longest.")
    assert "Derived, not stated: 180 looks at r1 in 2 h 59 min" in out
    assert "1. Give idle memory to the pools: fraction 0.8 to 0.8" in out
    assert "tuner run r1 --set mem_fraction_static=0.8" in out
    assert out.index("1. Give idle") < out.index("2. Move memory from states to KV")


def test_the_line_to_paste_means_what_was_proposed(home: Home) -> None:
    flags = {"speculative_algorithm": None, "chunked_prefill_size": 2048, "disable_radix_cache": True}
    words = run_line("r1", flags).split()
    assert words[:3] == ["tuner", "run", "r1"]
    changed = merge_set(demo(speculative_algorithm="NEXTN"), words[4::2])
    assert "speculative_algorithm" not in changed.flags
    assert (changed.flags["chunked_prefill_size"], changed.flags["disable_radix_cache"]) == (2048, True)


def test_json_has_every_field(home: Home) -> None:
    with History(home.database) as history:
        kept(history, demo())
    status, out, _ = run("r1", "--input", "120K", "--agents", "2", "--warm-prefixes", "3", "--output", "2K", "--json")
    answer = json.loads(out)
    assert status == 0 and answer["enough"] is False and answer["round"] == "r1" and answer["simulated"] is True
    assert answer["derived_need"] is None and answer["need"]["input_tokens"] == 120_000
    assert answer["need"]["output_tokens"] == 2_000
    first = answer["proposals"][0]
    assert set(first) == {
        "id", "lever", "title", "flags", "reason", "evidence", "gives_up", "risk", "effects", "meets_need",
    }  # fmt: skip
    assert first["id"] == "smaller-ratio"
    assert [set(effect) for effect in first["effects"]] == [{"name", "old", "new", "change"}] * 5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "The history is empty: run a first round with tuner run."),
        (("r4",), "There is no round r4"),
        (("--input", "ten"), "is not a number of tokens"),
    ],
)
def test_wrong_use_is_one_sentence(home: Home, words: tuple[str, ...], sentence: str) -> None:
    status, out, err = run(*words)
    assert status == 2 and sentence in out + err and "Traceback" not in out + err


@pytest.mark.parametrize("words", [("--agents", "2"), ("--headroom", "3")])
def test_a_need_is_an_input_first(home: Home, words: tuple[str, ...]) -> None:
    with History(home.database) as history:
        kept(history, demo())
    status, out, err = run(*words)
    assert status == 2 and "Give --input too, or need_input_tokens in [tuner]" in out + err


def test_the_recipe_may_state_the_need_and_options_go_before_it(home: Home) -> None:
    need: dict[str, int] = {"need_input_tokens": 120_000, "need_agents": 2, "need_warm_prefixes": 3}
    stated = TunerSettings(**need)
    with History(home.database) as history:
        recipe = msgspec.structs.replace(demo(), tuner=msgspec.structs.replace(demo().tuner, **need))
        round_ = kept(history, recipe)
        # What the Doctor screen asks, too.
        assert question(history, round_, inputs(**recipe.flags)).need == stated_need(stated)
        given = Need(input_tokens=1, agents=1)
        assert question(history, round_, inputs(**recipe.flags), given).need == given
    said = json.loads(run("--json")[1])["need"]
    assert (said["input_tokens"], said["agents"], said["warm_prefixes"]) == (120_000, 2, 3)
    said = json.loads(run("--agents", "1", "--warm-prefixes", "0", "--json")[1])["need"]
    assert (said["input_tokens"], said["agents"], said["warm_prefixes"]) == (120_000, 1, 0)


def test_the_round_meant_is_the_running_one_else_the_newest_that_came_up(home: Home) -> None:
    with History(home.database) as history:
        good = kept(history, demo())
        bad = kept(history, demo(mem_fraction_static=0.5), RoundState.FAILED)
        found = advised_round(history, None)
        assert found is not None and found.name == good.name
        running = advised_round(history, bad)
        assert running is not None and running.name == bad.name


def test_readings_of_all_rounds_with_the_same_flags_count_wherever_they_listened(home: Home) -> None:
    with History(home.database) as history:
        first = kept(history, demo(port=31_301), physics=Physics(at=1.0))
        other = kept(history, demo(mem_fraction_static=0.8))
        last = kept(history, demo(port=31_302))
        for number, round_ in enumerate((first, other, last)):
            history.add_samples(round_.number, [look(number, running=number + 1, queued=0, kv_used_tokens=10_000)])
        asked = question(history, last, inputs(**last.recipe.flags))
        assert asked.usage.rounds == ("r1", "r3") and asked.usage.peak_running == 3
        assert asked.physics is not None
        assert {(t.name, t.bad) for t in asked.tried} == {("r1", False), ("r2", False)}


def test_a_fresh_round_is_asked_about_with_the_work_of_the_round_before(home: Home) -> None:
    with History(home.database) as history:
        kept(history, demo(mem_fraction_static=0.8))
        history.add_samples(1, looks(kv_total=180_000, slots_total=60, hours=2))
        kept(history, demo(mem_fraction_static=0.84))
        now = kept(history, demo())
        asked = question(history, now, inputs(**now.recipe.flags))
        assert asked.usage.looks == 0
        assert asked.before.rounds == ("r1",) and asked.before.peak_running == 3
        history.add_samples(now.number, looks(kv_total=220_000, slots_total=81, hours=1))
        assert question(history, now, inputs(**now.recipe.flags)).before.rounds == ()


def test_failed_and_rejected_rounds_are_remembered_as_bad_and_the_check_as_evidence(home: Home) -> None:
    check = CheckResult(name=PREFIX_REUSE, verdict=Verdict.FAIL, reason="nothing was reused")
    with History(home.database) as history:
        kept(history, demo(mem_fraction_static=0.5), RoundState.FAILED)
        rejected = kept(history, demo(mem_fraction_static=0.8))
        history.set_verdict(rejected.number, "reject")
        now = kept(history, demo(), checks=(check,))
        asked = question(history, now, inputs(**now.recipe.flags))
        assert all(t.bad for t in asked.tried) and asked.prefix_reused is False
