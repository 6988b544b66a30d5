"""The parts of the app that are plain functions of values."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uifakes import DEMO, HYBRID_27B, FakeSession

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.flags import catalogue
from tuner.recipe.model import Recipe
from tuner.rounds.model import ChangeVerdict, Round, RoundState
from tuner.server.model import StopOutcome
from tuner.serverlog.model import Phase
from tuner.session import export as exporting
from tuner.session.events import CheckEnded, CheckStarted, PhaseChanged, RoundClosed, RoundOpened, ServerStopped
from tuner.ui.bench import Bench
from tuner.ui.knobs import SPECULATION, ChoiceKnob, SliderKnob, choice_flags, choice_key, knobs_for
from tuner.ui.logtail import LogTail, clean_line
from tuner.ui.progress import CHECKS, StepState, Work, advance, begin, finish, ticked
from tuner.ui.screens.compare import _judged
from tuner.ui.screens.export import FORMATS
from tuner.ui.terminal import Output
from tuner.ui.timing import last_like, times_of
from tuner.ui.widgets.findings_list import fitted
from tuner.ui.widgets.palette import meter, shares
from tuner.ui.widgets.scale import Scale
from tuner.ui.wording import changes_line, in_flight_words, signed, value

FRACTION = Scale(low=0.5, high=0.99, step=0.01, digits=2)
RATIO = Scale(low=0.05, high=3.0, step=0.05, bend=1.6, digits=2)
CHUNK = Scale(low=512, high=32768, doubling=True)


@pytest.mark.parametrize("scale", [FRACTION, RATIO, CHUNK])
@given(place=st.floats(-0.5, 1.5))
@settings(max_examples=60)
def test_a_place_on_a_track_gives_a_value_of_its_scale_that_lies_there(scale: Scale, place: float) -> None:
    value_there = scale.at(place)
    assert scale.low <= value_there <= scale.high
    assert scale.snap(value_there) == pytest.approx(value_there)
    assert scale.at(scale.position(value_there)) == pytest.approx(value_there)


@pytest.mark.parametrize("scale", [FRACTION, RATIO, CHUNK])
@given(steps=st.lists(st.integers(-5, 5), max_size=20))
@settings(max_examples=60)
def test_steps_never_leave_the_bounds_and_one_up_one_down_returns(scale: Scale, steps: list[int]) -> None:
    here = scale.at(0.5)
    for step in steps:
        here = scale.moved(here, step)
        assert scale.low <= here <= scale.high
    if scale.low < here < scale.high:
        assert scale.moved(scale.moved(here, 1), -1) == pytest.approx(here)


def test_a_step_from_between_two_values_goes_to_the_next_one_and_not_over_it() -> None:
    assert FRACTION.moved(0.855, 1) == pytest.approx(0.86)
    assert FRACTION.moved(0.855, -1) == pytest.approx(0.85)


@given(sizes=st.lists(st.floats(-1, 50), min_size=1, max_size=9), cells=st.integers(10, 200))
@settings(max_examples=80)
def test_the_terms_of_a_bar_fill_it_exactly(sizes: list[float], cells: int) -> None:
    widths = shares(sizes, cells)
    assert all(w >= 0 for w in widths)
    assert sum(widths) == (cells if any(s > 0 for s in sizes) else 0)


@given(part=st.floats(0, 200), more=st.floats(0, 100), cells=st.integers(1, 60))
@settings(max_examples=80)
def test_a_meter_is_always_as_wide_as_asked(part: float, more: float, cells: int) -> None:
    assert meter(part, 100.0, cells, more=more).cell_length == cells


def test_a_change_made_before_the_server_restarted_stays_changed_after() -> None:
    bench = Bench.opened(DEMO, "r1").changed({"schedule_policy": "fcfs"})
    moved = bench.rebased(DEMO.with_flags({"mem_fraction_static": 0.9}), "r2")
    assert [(c.name, c.old, c.new) for c in moved.changes()] == [("schedule_policy", "lpm", "fcfs")]
    assert moved.draft.flags["mem_fraction_static"] == 0.9


def test_a_change_that_became_the_running_value_is_no_change_any_more() -> None:
    bench = Bench.opened(DEMO, "r1").changed({"mem_fraction_static": 0.9})
    assert bench.rebased(bench.draft, "r2").changes() == ()


def test_undo_has_an_end_in_both_directions() -> None:
    bench = Bench.opened(DEMO)
    assert bench.undone() is bench
    assert bench.redone() is bench


def test_flags_of_another_round_replace_all_and_come_back_by_one_undo() -> None:
    other = Recipe(flags={"model_path": "/x", "tp_size": 2})
    bench = Bench.opened(DEMO).replaced(other)
    assert bench.draft.flags == other.flags
    assert bench.draft.python == DEMO.python
    assert bench.undone().draft.flags == DEMO.flags


def test_an_unusual_speculation_stays_among_the_options_as_asked() -> None:
    asked = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_num_draft_tokens": 8}
    knob = next(k for k in knobs_for(None, asked) if k.name == SPECULATION)
    assert isinstance(knob, ChoiceKnob)
    assert choice_key(knob, asked) == "asked"
    assert choice_flags(knob, "asked", asked)["speculative_num_draft_tokens"] == 8
    assert set(choice_flags(knob, "off", asked).values()) == {None}


def test_a_log_that_grows_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    tail = LogTail(path)
    assert tail.read() == ["one"]
    assert tail.pending == "tw"
    with path.open("ab") as file:
        file.write("o 池\nthree".encode())
    assert tail.read() == ["two 池"]
    assert tail.pending == "three"


def test_a_log_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old line that is long\n")
    tail = LogTail(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == ["new"]


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("wb") as file:
        file.truncate(3 << 30)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    tail = LogTail(path)
    lines = [*tail.read(), *tail.read(), *tail.read()]
    assert lines[-1] == "the end"
    assert tail.skipped > 2 << 30


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"10%\r50%\r100%\r", "100%"),
        (b"a\tb", "a    b"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x", "red x"),
        (b"bad \xff byte", "bad \ufffd byte"),
        (b"", ""),
        (b"server_args=ServerArgs(port=1, api_key='sk-1234567890ab')", "server_args=ServerArgs(port=1, api_key='***')"),
        (b"10%\rapi_key='my \x1b[1mown\x1b[0m key'", "api_key='***'"),
    ],
)
def test_a_log_line_is_its_last_frame_without_escape_sequences_or_secrets(raw: bytes, shown: str) -> None:
    assert clean_line(raw) == shown


def test_the_steps_of_a_start_pass_one_after_the_other() -> None:
    progress = begin(Work.ROUND, stops_first=True, before={"loading weights": 12.0}, simulated=True, now=100.0)
    round_ = Round(number=3, started_at=0.0, state=RoundState.STARTING, recipe=DEMO)
    progress = advance(progress, RoundOpened(round_), 100.5)
    progress = advance(progress, PhaseChanged(phase=Phase.LOADING, elapsed_s=4.0, total_s=6.0, last_line="x"), 106.0)
    states = {s.name: s.state for s in progress.steps}
    assert states[Phase.LAUNCHING] is StepState.DONE
    assert states[Phase.LOADING] is StepState.RUNNING
    assert states[Phase.SIZING] is StepState.WAITING
    assert progress.current == "loading weights"
    assert progress.total_s == pytest.approx(6.0)
    progress = advance(progress, CheckStarted("thinking", 1, 1), 120.0)
    result = CheckResult(name="thinking", verdict=Verdict.FAIL, reason="no reasoning came", seconds=1.0)
    progress = advance(progress, CheckEnded(result), 121.0)
    ended = msgspec.structs.replace(round_, state=RoundState.UNVERIFIED, checks=(result,))
    progress = finish(advance(progress, RoundClosed(ended), 122.0), "", 123.0)
    assert not progress.good
    assert progress.title == "r3 unverified"


def test_a_start_that_fails_marks_the_phase_it_failed_in() -> None:
    progress = begin(Work.ROUND, stops_first=False, before={}, simulated=False)
    progress = advance(progress, PhaseChanged(phase=Phase.SIZING, elapsed_s=1.0, total_s=9.0), 9.0)
    failed = Round(number=1, started_at=0.0, state=RoundState.FAILED, phase=Phase.SIZING, recipe=DEMO)
    progress = advance(progress, RoundClosed(failed), 10.0)
    assert {s.name for s in progress.steps if s.state is StepState.FAILED} == {Phase.SIZING}


def test_a_restart_as_long_as_the_last_one_is_not_called_longer_than_before() -> None:
    check = CheckResult(name="thinking", verdict=Verdict.PASS, reason="thought", seconds=4.0)
    last = Round(
        number=1, started_at=0.0, state=RoundState.VERIFIED, recipe=DEMO, checks=(check,), ready_seconds=9.0,
        phase_seconds={Phase.LAUNCHING: 3.0, Phase.LOADING: 5.0, Phase.WARMING: 2.0},
    )  # fmt: skip
    progress = begin(Work.ROUND, stops_first=True, before=times_of(last), simulated=True, now=100.0)
    assert progress.total_before_s == pytest.approx(14.0)
    # A plan of 2 s and a stop of 6 s come before: neither is part of a start.
    stopped = StopOutcome(stopped=True, seconds=6.0, how="SIGTERM")
    progress = advance(progress, PhaseChanged(phase=Phase.STOPPING, elapsed_s=1.0, total_s=1.0), 103.0)
    progress = advance(progress, ServerStopped(stopped), 108.0)
    progress = advance(
        progress, PhaseChanged(phase=Phase.LOADING, elapsed_s=2.0, total_s=5.0, estimate_s=5.0, total_estimate_s=9.0),
        113.0,
    )  # fmt: skip
    assert progress.total_before_s == pytest.approx(22.0)
    progress = advance(progress, CheckEnded(check), 122.0)
    assert progress.total_before_s is not None
    assert progress.total_s <= progress.total_before_s
    assert ticked(progress, 123.5).total_s == pytest.approx(23.5)
    assert ticked(finish(progress, "", 123.0), 150.0).total_s == pytest.approx(22.0)


def test_only_a_start_of_the_same_model_tells_how_long_this_one_takes(session: FakeSession) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    session.run_round(DEMO.with_flags({"model_path": "/other"}), publish=lambda _: None, cancel=threading.Event())
    before = last_like(session.history, DEMO)
    assert before is not None
    assert before.name == "r1"
    assert times_of(before)[CHECKS] == pytest.approx(4.8)
    assert last_like(session.history, DEMO.with_flags({"model_path": "/third"})) is None
    assert times_of(None) == {}


def test_requests_in_flight_are_said_to_get_time() -> None:
    assert in_flight_words(1) == "1 request is in flight: it gets up to 60 s to finish, then it is broken off."
    assert in_flight_words(3).startswith("3 requests are in flight: they get up to 60 s to finish")


@pytest.mark.parametrize(
    ("verdict", "cells", "said"),
    [
        (ChangeVerdict.WITHIN_NOISE, 40, "+1 % within noise"),
        (ChangeVerdict.WITHIN_NOISE, 16, "within noise"),
        (ChangeVerdict.NOT_COMPARABLE, 16, "not comparable"),
        (ChangeVerdict.BETTER, 7, "+1 %"),
        (ChangeVerdict.CHANGED, 16, "+1 %"),
    ],
)
def test_what_a_change_is_worth_is_never_cut_in_a_word(verdict: ChangeVerdict, cells: int, said: str) -> None:
    assert _judged(verdict, "+1 %", cells) == said


def test_every_format_of_an_export_is_offered_under_a_file_name_of_its_own() -> None:
    assert tuple(option.key for option in FORMATS) == exporting.FORMATS
    assert len({option.label for option in FORMATS}) == len(FORMATS)


def test_after_its_first_failed_write_an_output_takes_everything_and_writes_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        output = Output(file)
        seen = []
        for text in "xyz":
            output.write(text)
            output.flush()
            seen.append(output.gone)
            if text == "x":
                os.close(reading)
        assert seen == [False, True, True]
        with contextlib.suppress(BrokenPipeError):
            file.close()


def test_changes_are_said_short_and_the_same_way_everywhere() -> None:
    changes = Bench.opened(DEMO).changed({"mamba_full_memory_ratio": None, "disable_radix_cache": True}).changes()
    assert changes_line(changes) == "no prefix cache auto→on, ratio 0.9→auto"
    assert signed(3, 5) == "−2"
    assert signed(100_000, 5) == "+99,995"
    assert signed(None, 5) == ""
    assert value("a\x1b[31m\nb") == "a b"


def test_the_fake_session_is_one(session: FakeSession) -> None:
    from tuner.session.session import Session

    for name in ("planning_inputs", "run_round", "verify", "stop", "look", "export"):
        assert callable(getattr(Session, name))
        assert callable(getattr(session, name))


def test_every_slider_has_the_range_and_the_sentence_of_the_catalogue() -> None:
    knobs = knobs_for(HYBRID_27B, {"max_mamba_cache_size": 20})
    sliders = [knob for knob in knobs if isinstance(knob, SliderKnob)]
    assert {knob.name for knob in sliders} >= {"mem_fraction_static", "max_mamba_cache_size", "chunked_prefill_size"}
    for knob in sliders:
        info = catalogue()[knob.name]
        assert (knob.scale.low, knob.scale.high, knob.scale.step) == (info.low, info.high, info.step)
        assert knob.help == info.help


# findings


def _finding(severity: Severity, title: str, remedy: str) -> Finding:
    return Finding(id=FindingId.LOW_HEADROOM, severity=severity, title=title, remedy=remedy)


_FATAL = _finding(Severity.FATAL, "SGLang would refuse this start.", "Raise mem_fraction_static above 0.588.")
_OTHERS = tuple(_finding(Severity.WARNING, f"{n} 个警告：显存很少。", f"Lower knob {n} a little.") for n in (1, 2, 3))


def _drawn(findings: tuple[Finding, ...], wide: int, high: int) -> list[str]:
    words = fitted(findings, wide, high)
    assert words.get_height({}, wide) <= high
    return str(words).split("\n")


def test_what_will_fail_keeps_its_remedy_where_there_is_no_room_for_all() -> None:
    assert _drawn((*_OTHERS, _FATAL), 40, 4) == [
        "✗ SGLang would refuse this start. Raise",
        "  mem_fraction_static above 0.588.",
        "! 1 个警告：显存很少。",
        "  i shows 2 more",
    ]
    assert _drawn((*_OTHERS, _FATAL), 80, 2) == [
        "✗ SGLang would refuse this start. Raise mem_fraction_static above 0.588.",
        "  i shows 3 more",
    ]


def test_as_many_remedies_are_told_as_there_is_room_for_the_worst_finding_first() -> None:
    assert _drawn(_OTHERS, 40, 4) == [
        "! 1 个警告：显存很少。 Lower knob 1 a",
        "  little.",
        "! 2 个警告：显存很少。",
        "! 3 个警告：显存很少。",
    ]
    assert _drawn(_OTHERS, 80, 3)[2].endswith("Lower knob 3 a little.")


@given(severities=st.lists(st.sampled_from(Severity), max_size=5), wide=st.integers(20, 90), high=st.integers(1, 12))
@settings(max_examples=80)
def test_findings_never_take_more_room_than_there_is(severities: list[Severity], wide: int, high: int) -> None:
    findings = tuple(_finding(s, f"第 {n} 个发现 of a plan", "Do this, then that.") for n, s in enumerate(severities))
    assert not findings or _drawn(findings, wide, high)
