"""Several rounds beside each other, on a front, as a chart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_round_reports import round_

from tuner.metrics.model import Readings, Spread
from tuner.rounds.chart import bars, measure_chart, memory_chart, samples_chart, spark
from tuner.rounds.diff import diff
from tuner.rounds.measures import MEASURES, measure
from tuner.rounds.model import ChangeVerdict, Round, RoundState
from tuner.rounds.pareto import Point, best, front
from tuner.rounds.report import table_markdown, table_text
from tuner.rounds.table import table
from tuner.serverlog.model import BootFacts
from tuner.text import width


def served(number: int, tokens: int, agents: int, ttft: float | None = 0.8, count: int = 24, **fields: object) -> Round:
    readings = Readings(at=1.0, ttft_s=Spread(p50=ttft, p95=ttft * 2, count=count) if ttft else None)
    return round_(
        number,
        round(0.8 + number / 100, 2),
        boot=BootFacts(kv_tokens=tokens, mamba_slots=57, max_running_requests=agents, available_gib=3.0),
        effective={"max_req_input_len": tokens + 1},
        readings=readings,
        **fields,
    )


def test_a_table_has_a_column_for_each_round_and_only_what_differs() -> None:
    many = table([served(1, 100_000, 3), served(2, 220_000, 2), served(5, 150_000, 3)])
    assert many.rounds == ("r1", "r2", "r5")
    (fraction,) = many.flags
    assert fraction.name == "mem_fraction_static" and fraction.values == (0.81, 0.82, 0.85)
    rows = {row.name: row for row in many.measures}
    assert rows["KV tokens"].best == ("r2",) and rows["requests"].best == ("r1", "r5")
    assert "state slots" not in rows and "TTFT p50" not in rows
    text = table_text(many)
    assert "r1 to r5: +50,000 KV tokens" in text and "220,000 *" in text
    assert "| KV tokens | 100,000 | 220,000 \\* | 150,000 |" in table_markdown(many)
    assert all(width(line) <= 140 for line in text.splitlines())


def test_nothing_is_best_that_is_within_noise_or_of_too_few_samples() -> None:
    def soonest(*times: float, count: int = 24) -> tuple[str, ...]:
        rounds = [served(n, 1000 * n, 3, ttft, count) for n, ttft in enumerate(times, start=1)]
        return {row.name: row.best for row in table(rounds).measures}["TTFT p50"]

    assert soonest(0.5, 0.8, 1.0) == ("r1",)
    assert soonest(0.80, 0.81, 0.82) == ("r1", "r2", "r3")
    assert soonest(0.5, 0.8, 1.0, count=9) == ()


def test_the_front_has_what_no_other_round_beats_in_everything() -> None:
    long_, many, beaten, fast = (
        served(1, 200_000, 2), served(2, 100_000, 8), served(3, 90_000, 2), served(4, 90_000, 2, 0.1),
    )  # fmt: skip
    assert front([long_, many, beaten, fast]) == {1, 2, 4}
    assert front([long_, served(5, 200_000, 2, 0.79)]) == {1, 5}
    assert front([long_, served(6, 300_000, 3, None)]) == {1, 6}
    assert front([served(7, 1, 1, None), served(8, 2, 2, None)]) == {8}


def test_only_verified_rounds_of_one_kind_are_weighed_against_each_other() -> None:
    good = served(1, 100, 1)
    for other in (
        served(2, 200, 2, state=RoundState.UNVERIFIED),
        served(3, 200, 2, verdict="reject"),
        served(4, 200, 2, simulated=True),
        served(5, 200, 2, gpu_name="another card"),
    ):
        assert 1 in front([good, other])
    assert front([good, served(6, 200, 2)]) == {6}


def test_rounds_of_other_files_are_not_comparable_whatever_their_folder_is_called() -> None:
    old, new = served(1, 100, 1), served(2, 200, 1)
    old = msgspec.structs.replace(old, fingerprint={"config": "a", "weights": "b"})
    other = msgspec.structs.replace(new, fingerprint={"config": "a", "weights": "c"})
    assert "by their files" in diff(old, other).summary
    moved = msgspec.structs.replace(
        new, fingerprint=old.fingerprint, recipe=new.recipe.with_flags({"model_path": "/elsewhere/m"})
    )
    pools = {change.name: change.verdict for change in diff(old, moved).pools}
    assert pools["KV tokens"] is ChangeVerdict.BETTER


def test_vram_before_and_after_is_part_of_the_difference() -> None:
    old, new = (
        served(1, 100, 1, vram_mib={"peak": 40_960, "ready": 40_000}),
        served(2, 100, 1, vram_mib={"peak": 41_984}),
    )
    pools = {change.name: change for change in diff(old, new).pools}
    assert (pools["VRAM at its highest, GiB"].old, pools["VRAM at its highest, GiB"].change) == (40.0, "+1.00")


def test_a_chart_has_a_bar_for_each_round_and_says_how_the_others_ended() -> None:
    wanted = measure("kv-tokens")
    assert wanted is not None and measure("nonsense") is None
    failed = round_(2, state=RoundState.FAILED, boot=None)
    lines = measure_chart(wanted, [served(1, 100, 1), failed, served(3, 200, 1, simulated=True)], cells=60)
    assert lines[0].endswith("100") and lines[1].endswith("failed") and lines[2].startswith("r3 (sim)")
    assert lines[2].count("█") == 2 * lines[0].count("█") and "█" not in lines[1]
    assert all(width(line) <= 60 for line in lines)


@pytest.mark.parametrize("wanted", MEASURES, ids=lambda m: m.name)
def test_every_measure_reads_a_full_round_and_an_empty_one(wanted: object) -> None:
    assert wanted.read(round_(1, boot=None, readings=None, checks=(), ready_seconds=None)) is None  # type: ignore[attr-defined]
    value = wanted.read(  # type: ignore[attr-defined]
        served(
            1, 100, 1, vram_mib={"peak": 1, "ready": 1},
        )
    )  # fmt: skip
    assert value is None or wanted.show(value)  # type: ignore[attr-defined]


def test_memory_and_samples_are_drawn_in_a_report() -> None:
    boot = BootFacts(weights_gib={"target": 27.5}, kv_gib=6.7, available_gib=4.6)
    lines = memory_chart(round_(1, boot=boot), 60)
    assert [line.split("█")[0].strip() for line in lines] == ["weights of the target", "KV pool", "free at ready"]
    assert memory_chart(round_(1, boot=None)) == []
    drawn = samples_chart([Readings(at=float(n), running=n, kv_used_tokens=n * 1000) for n in range(5)])
    assert drawn[0].endswith("▁▃▅▇█ up to 4,000") and len(drawn) == 2


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=80), st.integers(20, 120))
def test_any_values_are_drawn_within_the_room(values: list[float | None], cells: int) -> None:
    assert len(spark(values, 60)) == min(60, len(values))
    for line in bars([(f"r{n}", value, "x") for n, value in enumerate(values)], cells):
        assert width(line) <= max(cells, 16)


POINTS = st.lists(
    st.builds(
        Point,
        number=st.integers(1, 10**6),
        group=st.sampled_from([(False, "a", None), (True, "a", None)]),
        longest=st.none() | st.integers(1, 4),
        agents=st.none() | st.integers(1, 4),
        ttft_s=st.none() | st.sampled_from([0.5, 0.51, 0.53, 0.7, 1.0]),
    ),
    max_size=12,
    unique_by=lambda point: point.number,
)


def _beats(one: Point, other: Point) -> bool:
    """By the words of the definition, one pair at a time."""
    if None in (one.longest, one.agents, other.longest, other.agents) or one.group != other.group:
        return False
    if (one.ttft_s is None) != (other.ttft_s is None):
        return False
    sooner = 0.0
    if one.ttft_s is not None and other.ttft_s is not None and abs(one.ttft_s - other.ttft_s) > 0.05 * other.ttft_s:
        sooner = other.ttft_s - one.ttft_s
    steps = (one.longest - other.longest, one.agents - other.agents, sooner)  # type: ignore[operator]
    return min(steps) >= 0 and max(steps) > 0


@settings(max_examples=300, deadline=None)
@given(POINTS)
def test_the_front_of_many_rounds_is_that_of_every_pair(points: list[Point]) -> None:
    known = [p for p in points if p.longest is not None and p.agents is not None]
    assert best(points) == {p.number for p in known if not any(_beats(other, p) for other in known)}


def test_a_round_that_never_served_does_not_fill_the_table_with_dashes() -> None:
    one, other = served(1, 1_000, 3), served(2, 2_000, 3)
    refused = msgspec.structs.replace(one, number=3, state=RoundState.REFUSED, effective={}, boot=None)
    assert [row.name for row in table([one, other, refused]).effective] == ["max_req_input_len"]


def test_nothing_is_the_best_among_rounds_of_different_cards() -> None:
    rounds = [served(n, n * 1_000, 3, gpu_name=card) for n, card in ((1, "A"), (2, "A"), (3, "B"))]
    assert not any(row.best for row in table(rounds).measures)
    assert any(row.best for row in table(rounds[:2]).measures)
