from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tuner.measure.model import Load, Measurement, Physics, Sample, Slo, SpeedPoint
from tuner.measure.report import load_text
from tuner.measure.stats import by_repeat, rates, stat
from tuner.recipe.model import Recipe
from tuner.rounds.ab import Side, alternating, compared
from tuner.rounds.diff import diff
from tuner.rounds.history import History
from tuner.rounds.measured import newest_pair
from tuner.rounds.model import Change, ChangeVerdict, Round, RoundState
from tuner.rounds.noise import compare_measured
from tuner.rounds.report import round_markdown, round_text

#: Noise that is put in: from request to request, and from round to round.
REQUEST, ROUND = 0.05, 0.02
DEFAULT = Load()


def measured(chance: random.Random, median: float = 0.4, load: Load = DEFAULT, **fields: Any) -> Measurement:
    """A round's load whose TTFT and ITL scatter as said, at the default number of requests and repeats."""
    level = chance.gauss(1, ROUND)
    samples = tuple(
        Sample(
            repeat,
            0.0,
            median * level * chance.gauss(1, REQUEST),
            1.0,
            0.02 * (median / 0.4) * level * chance.gauss(1, REQUEST),
            1024,
            64,
            0,
            True,
        )
        for repeat in range(load.repeats)
        for _ in range(load.requests)
    )
    tokens, requests, _ = rates(samples, [median * 100] * load.repeats, Slo())
    return Measurement(
        load=load,
        at=1.0,
        seconds=60.0,
        ttft_s=stat(by_repeat(samples, "ttft_s")),
        itl_s=stat(by_repeat(samples, "itl_s")),
        output_tokens_per_s=tuple(tokens),
        requests_per_s=tuple(requests),
        samples=samples,
        **fields,
    )


def round_of(number: int, *measurements: Measurement) -> Round:
    recipe = Recipe(flags={"model_path": "/models/hybrid"})
    return Round(
        number=number, started_at=1.0, state=RoundState.VERIFIED, recipe=recipe, measurements=tuple(measurements)
    )


def verdict(one: Measurement, other: Measurement, field: str = "ttft_s", which: str = "p50") -> ChangeVerdict:
    return compare_measured(getattr(one, field), getattr(other, field), which)


@pytest.mark.parametrize("field", ["ttft_s", "itl_s"])
@pytest.mark.parametrize(
    ("median", "wanted", "least"),
    [
        (0.4, ChangeVerdict.WITHIN_NOISE, 0.95),
        (0.44, ChangeVerdict.WORSE, 0.90),
        (0.36, ChangeVerdict.BETTER, 0.90),
    ],
)
def test_identical_rounds_are_within_noise_and_a_tenth_is_found(
    field: str, median: float, wanted: ChangeVerdict, least: float
) -> None:
    chance = random.Random(20)
    trials = 600
    found = sum(verdict(measured(chance), measured(chance, median), field) is wanted for _ in range(trials))
    assert found >= least * trials


def test_a_verdict_does_not_depend_on_which_round_is_the_earlier_one() -> None:
    chance = random.Random(3)
    opposite = {ChangeVerdict.WORSE: ChangeVerdict.BETTER, ChangeVerdict.WITHIN_NOISE: ChangeVerdict.WITHIN_NOISE}
    for _ in range(50):
        one, other = measured(chance), measured(chance, 0.43)
        there, back = verdict(one, other), verdict(other, one)
        assert there == back or opposite.get(there) == back


def named(changes: tuple[Change, ...]) -> dict[str, Change]:
    return {change.name: change for change in changes}


def test_a_difference_of_rounds_judges_their_loads() -> None:
    chance = random.Random(1)
    found = named(diff(round_of(1, measured(chance)), round_of(2, measured(chance, 0.6))).metrics)
    ttft = found["load 4x1,024+64: TTFT p50, s"]
    assert ttft.verdict is ChangeVerdict.WORSE
    assert ttft.change.startswith("+")
    assert found["load 4x1,024+64: TTFT p95, s"].verdict is ChangeVerdict.WORSE
    assert found["load 4x1,024+64: output, tokens/s"].verdict is ChangeVerdict.WORSE
    # 192 samples do not make a p99.
    assert "load 4x1,024+64: TTFT p99, s" not in found


def test_another_load_cannot_be_compared() -> None:
    chance = random.Random(1)
    other = msgspec.structs.replace(DEFAULT, concurrency=8)
    old, new = round_of(1, measured(chance)), round_of(2, measured(chance, load=other))
    change = named(diff(old, new).metrics)["load"]
    assert (change.old, change.new) == ("4x1,024+64", "8x1,024+64")
    assert change.verdict is ChangeVerdict.NOT_COMPARABLE
    assert named(diff(old, round_of(3)).metrics)["load"].verdict is ChangeVerdict.NOT_COMPARABLE


def test_the_newest_loads_of_one_kind_are_compared() -> None:
    chance = random.Random(1)
    other = msgspec.structs.replace(DEFAULT, concurrency=8)
    first, second, third = measured(chance), measured(chance, load=other), measured(chance)
    assert newest_pair([first, second], [third]) == (first, third)
    assert newest_pair([second], [third]) is None


def test_too_few_samples_are_not_compared() -> None:
    chance = random.Random(1)
    few = msgspec.structs.replace(DEFAULT, requests=3)
    assert verdict(measured(chance, load=few), measured(chance, 0.8, load=few)) is ChangeVerdict.NOT_COMPARABLE


def test_samples_are_kept_with_the_round(tmp_path: Any) -> None:
    kept = measured(random.Random(1), slo=Slo(ttft_s=1.0), ended_early="It was broken off.")
    with History(tmp_path / "rounds.sqlite3") as history:
        number = history.open_round(round_of(0)).number
        history.save(msgspec.structs.replace(history.get(number), measurements=(kept,)))
        assert history.get(number).measurements == (kept,)


def test_sides_take_turns_so_that_neither_is_always_first() -> None:
    assert list(alternating(3)) == [0, 1, 1, 0, 0, 1]
    assert sorted(alternating(4)) == [0] * 4 + [1] * 4


def side(value: str, chance: random.Random, median: float, starts: int = 3) -> Side:
    measurements = tuple(measured(chance, median) for _ in range(starts))
    return Side(value=value, rounds=tuple(f"r{n}" for n in range(starts)), measurements=measurements)


def test_two_settings_are_told_apart_over_several_starts() -> None:
    chance = random.Random(8)
    found = named(compared(side("lpm", chance, 0.4), side("fcfs", chance, 0.5)))
    assert found["TTFT p50, s"].verdict is ChangeVerdict.WORSE
    assert found["output, tokens/s"].verdict is ChangeVerdict.WORSE
    same = named(compared(side("lpm", chance, 0.4), side("fcfs", chance, 0.4)))
    assert same["TTFT p50, s"].verdict is ChangeVerdict.WITHIN_NOISE


def test_a_start_or_two_of_each_side_are_too_few() -> None:
    chance = random.Random(8)
    found = compared(side("lpm", chance, 0.4, 2), side("fcfs", chance, 0.8, 2))
    assert {change.verdict for change in found} == {ChangeVerdict.NOT_COMPARABLE}


def test_what_was_measured_is_shown_with_its_round() -> None:
    load = measured(random.Random(1))
    alone = Physics(at=1.0, points=(SpeedPoint(tokens=16_384, ttft_s=4.1, prefill_tokens_per_s=3_996.2),))
    shown = round_text(msgspec.structs.replace(round_of(1, load), physics=alone))
    assert f"load {load_text(load.load)}: " in shown and "output" in shown
    assert "16,384" in shown and "3,996 t/s" in shown
    assert "```text\nload " in round_markdown(round_of(1, load))
