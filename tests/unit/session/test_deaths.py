"""Which rounds count as the same death, and which one is the last good."""

from __future__ import annotations

import msgspec
import pytest

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.conditions import Conditions
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.rounds.model import Round, RoundState
from tuner.session.deaths import crash_loop, hidden_flags, last_good, refusal, same_recipe, with_secrets
from tuner.session.runners import LOST

RECIPE = Recipe(python="/env/bin/python", flags={"model_path": "/m", "port": 30000, "mem_fraction_static": 0.5})
NO_ROOM = Finding(
    id=FindingId.NO_ROOM_AT_SIZING,
    severity=Severity.FATAL,
    title="The weights fill the budget.",
    remedy="Raise mem_fraction_static to 0.7.",
    flags={"mem_fraction_static": 0.7},
)


def died(number: int, recipe: Recipe = RECIPE, finding: Finding | None = NO_ROOM, reason: str = "died") -> Round:
    return Round(
        number=number,
        started_at=0.0,
        state=RoundState.FAILED,
        phase="sizing pools",
        reason=reason,
        recipe=recipe,
        findings=(finding,) if finding else (),
    )


def ended(number: int, state: RoundState, recipe: Recipe = RECIPE, **more: object) -> Round:
    return msgspec.structs.replace(died(number, recipe, None), state=state, **more)


def starting(recipe: Recipe = RECIPE) -> Round:
    return Round(number=9, started_at=0.0, state=RoundState.STARTING, recipe=recipe)


def names(rounds: tuple[Round, ...]) -> list[str]:
    return [round_.name for round_ in rounds]


def test_two_deaths_alike_are_a_loop() -> None:
    assert names(crash_loop([died(3), died(2), died(1)], starting())) == ["r3", "r2"]


def test_what_is_wished_of_a_server_makes_no_other_start() -> None:
    wishing = msgspec.structs.replace(RECIPE, tuner=TunerSettings(need_input_tokens=90_000, headroom_gib=2.0))
    assert names(crash_loop([died(3, wishing), died(2)], starting())) == ["r3", "r2"]


def test_one_death_is_none() -> None:
    assert crash_loop([died(3)], starting()) == ()
    assert crash_loop([], starting()) == ()


def test_another_cause_or_another_phase_is_no_loop() -> None:
    other = msgspec.structs.replace(NO_ROOM, id=FindingId.OOM_IN_CAPTURE)
    assert crash_loop([died(3), died(2, finding=other)], starting()) == ()
    assert crash_loop([died(3), msgspec.structs.replace(died(2), phase="loading weights")], starting()) == ()


def test_without_a_finding_the_reason_counts_but_not_its_numbers() -> None:
    first = died(2, finding=None, reason="The server ended while loading weights: bad free at 0x7f01, 12.5 GB")
    second = died(3, finding=None, reason="The server ended while loading weights: bad free at 0x9a77, 12.4 GB")
    assert names(crash_loop([second, first], starting())) == ["r3", "r2"]
    third = died(3, finding=None, reason="The server ended while loading weights: no such file")
    assert crash_loop([third, first], starting()) == ()


@pytest.mark.parametrize("state", [RoundState.VERIFIED, RoundState.UNVERIFIED])
def test_a_start_that_lived_breaks_the_row(state: RoundState) -> None:
    assert crash_loop([died(3), ended(2, state), died(1)], starting()) == ()
    assert crash_loop([ended(4, state), died(3), died(2)], starting()) == ()


@pytest.mark.parametrize("state", [RoundState.REFUSED, RoundState.ABORTED])
def test_a_start_that_was_not_let_tells_nothing(state: RoundState) -> None:
    assert names(crash_loop([ended(4, state), died(3), ended(2, state), died(1)], starting())) == ["r3", "r1"]


def test_a_round_whose_tuner_was_killed_tells_nothing() -> None:
    lost = died(4, finding=None, reason=f"{LOST} in the middle of this round, and its server is gone.")
    assert names(crash_loop([lost, died(3), died(2)], starting())) == ["r3", "r2"]
    assert crash_loop([lost, died(3)], starting()) == ()


def test_other_recipes_in_between_do_not_count() -> None:
    other = RECIPE.with_flags({"mem_fraction_static": 0.8})
    assert names(crash_loop([died(4), ended(3, RoundState.VERIFIED, other), died(2)], starting())) == ["r4", "r2"]
    assert crash_loop([died(4), died(2)], starting(other)) == ()


def test_another_driver_is_worth_another_try() -> None:
    before = Conditions(model="m", sglang_version="0.5.17", driver_version="550")
    deaths = [msgspec.structs.replace(died(number), conditions=before) for number in (3, 2)]
    same = msgspec.structs.replace(starting(), conditions=before)
    assert names(crash_loop(deaths, same)) == ["r3", "r2"]
    updated = msgspec.structs.replace(before, driver_version="580")
    assert crash_loop(deaths, msgspec.structs.replace(same, conditions=updated)) == ()


def test_the_refusal_shows_the_finding_the_end_of_the_log_and_the_way_out() -> None:
    finding = refusal([died(3), died(2)], [f"line {n}" for n in range(40)] + [""])
    assert finding.id is FindingId.NO_ROOM_AT_SIZING
    assert "r2, r3" in finding.title
    assert "The weights fill the budget." in finding.title
    assert finding.evidence[-1] == "line 39"
    assert len(finding.evidence) == 12
    assert "0.7" in finding.remedy
    assert "--force" in finding.remedy
    assert finding.flags == {"mem_fraction_static": 0.7}


def test_a_recipe_is_the_same_whatever_its_name_and_with_its_secrets_out() -> None:
    asked = Recipe(name="a", python="/p", flags={"api_key": "sk-very-secret-key-0123456789"}, source_text="# x")
    kept = Recipe(name="b", python="/p", flags={"api_key": "***"})
    assert same_recipe(asked, kept)
    assert not same_recipe(asked, msgspec.structs.replace(kept, environment={"A": "1"}))


def test_secrets_that_no_round_keeps_come_from_the_recipe_at_hand() -> None:
    kept = Recipe(flags={"api_key": "***", "mem_fraction_static": 0.8})
    given = Recipe(flags={"api_key": "sk-secret", "mem_fraction_static": 0.9})
    assert hidden_flags(kept) == ["api_key"]
    assert with_secrets(kept, given).flags == {"api_key": "sk-secret", "mem_fraction_static": 0.8}
    assert hidden_flags(with_secrets(kept, Recipe())) == ["api_key"]


def test_the_last_good_round_is_verified_kept_and_of_this_port() -> None:
    old = RECIPE.with_flags({"mem_fraction_static": 0.8})
    elsewhere = old.with_flags({"port": 31000})
    simulated = msgspec.structs.replace(old, python=SIMULATOR)
    before = [
        ended(9, RoundState.VERIFIED),
        ended(8, RoundState.UNVERIFIED, old),
        ended(7, RoundState.VERIFIED, elsewhere),
        ended(6, RoundState.VERIFIED, simulated, simulated=True),
        ended(5, RoundState.VERIFIED, old, verdict="reject"),
        ended(4, RoundState.VERIFIED, old),
        ended(3, RoundState.VERIFIED, old, verdict="keep"),
    ]
    good = last_good(before, RECIPE)
    assert good is not None
    assert good.name == "r4"
    assert last_good(before[:5], RECIPE) is None
