from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import Readings, Spread
from tuner.recipe.model import Recipe
from tuner.rounds.diff import diff
from tuner.rounds.model import Change, ChangeVerdict, Round, RoundDiff, RoundState
from tuner.rounds.report import (
    diff_markdown,
    diff_text,
    round_markdown,
    round_outcome,
    round_text,
    rounds_markdown,
    summaries_text,
)
from tuner.rounds.summary import summarise
from tuner.serverlog.model import BootFacts, Phase
from tuner.text import width


def round_(number: int, fraction: float = 0.86, **fields: object) -> Round:
    known: dict[str, object] = {
        "started_at": 1_796_000_000.0,
        "state": RoundState.VERIFIED,
        "recipe": Recipe(
            flags={"model_path": "/models/hybrid-27b-fp8", "mem_fraction_static": fraction, "api_key": "sk-live-123456"}
        ),
        "boot": BootFacts(
            phase=Phase.READY, kv_tokens=262_294, mamba_slots=57, max_running_requests=3, available_gib=3.2
        ),
        "checks": (
            CheckResult(name="thinking", verdict=Verdict.PASS, reason="The right answer came.", seconds=1.52),
            CheckResult(name="tool call", verdict=Verdict.FAIL, reason="Template tokens are left: <|im_end|>."),
        ),
        "readings": Readings(at=1.0, ttft_s=Spread(p50=0.8, p95=1.2, count=24), prefix_hit_ratio=0.666),
        "ready_seconds": 72.0,
        "findings": (
            Finding(id=FindingId.LOW_HEADROOM, severity=Severity.WARNING, title="Little is left.", remedy="Lower it."),
        ),
        "phase_seconds": {"loading weights": 20.0},
    }
    return Round(number=number, **{**known, **fields})  # type: ignore[arg-type]


def rounds_text(rounds: Sequence[Round], cells: int = 140) -> str:
    """Rounds, newest first, as ``tuner rounds`` shows them."""
    before = [
        next((r for r in rounds[at + 1 :] if r.simulated == new.simulated), None) for at, new in enumerate(rounds)
    ]
    return summaries_text([summarise(new, old) for new, old in zip(rounds, before, strict=True)], cells)


def test_the_rounds_list_shows_changes_pools_checks_and_words_in_columns() -> None:
    rounds = [
        round_(3, 0.98, note="显存还剩 3.2 GiB，先保留", verdict="keep"),
        round_(
            2, 0.99, state=RoundState.FAILED, phase="capturing graphs", reason="Out of memory.", boot=None, checks=()
        ),
        round_(1),
    ]
    head, newest, failed, first = rounds_text(rounds, cells=200).splitlines()
    assert head.split()[:4] == ["round", "when", "outcome", "changed"]
    for word in ("r3", "verified", "mem_fraction_static 0.99 -> 0.98", "262,294", "57", "1/2", "keep; 显存还剩"):
        assert word in newest
    assert "at capturing graphs: Out of memory." in failed
    assert "mem_fraction_static 0.86 -> 0.99" in failed
    assert "mem_fraction_static" not in first


def test_columns_stay_in_line_with_wide_characters() -> None:
    rounds = [round_(2, reason="模型太大", note="备注"), round_(1, note="plain")]
    lines = rounds_text(rounds, cells=200).splitlines()
    at = [width(line[: line.index(word)]) for line, word in zip(lines, ("remark", "备注", "plain"), strict=True)]
    assert len(set(at)) == 1


def test_a_table_keeps_to_the_terminal_and_an_empty_history_has_words() -> None:
    long = [round_(1, note="很长的备注" * 60)]
    assert max(width(line) for line in rounds_text(long, cells=140).splitlines()) <= 140
    assert rounds_text([]) == "No rounds yet: tuner run starts the first one."


@pytest.mark.parametrize("cells", [40, 60, 80, 100])
def test_on_a_narrow_terminal_what_changed_and_the_note_have_a_line_of_their_own(cells: int) -> None:
    failed = round_(2, 0.99, state=RoundState.FAILED, phase="capturing graphs", reason="Out of memory.", note="更多 KV")
    lines = rounds_text([failed, round_(1)], cells).splitlines()
    assert max(width(line) for line in lines) <= cells
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["round", "r2", "r1"]
    assert "262,294" in lines[1] and "57" in lines[1]
    assert "mem_fraction_s" in lines[2] and "更多 KV" in lines[2]
    if cells >= 80:
        assert "mem_fraction_static 0.86 -> 0.99" in lines[2]
        assert ("ready" in lines[0]) and ("checks" in lines[0])


def test_a_simulated_round_is_marked_wherever_it_is_shown() -> None:
    simulated = round_(2, simulated=True)
    assert "r2 (sim)" in rounds_text([simulated])
    assert "r2 (sim)" in rounds_markdown([summarise(simulated)])
    assert "SIMULATED, no real SGLang" in round_text(simulated).splitlines()[0]
    assert "SIMULATED, no real SGLang" in round_markdown(simulated).splitlines()[0]
    difference = diff(round_(1), simulated)
    assert "SIMULATED" in diff_text(difference).splitlines()[0]
    assert "SIMULATED" in diff_markdown(difference).splitlines()[0]
    assert "SIMULATED" not in round_text(round_(1))


def test_a_round_in_full_names_what_was_asked_what_came_and_what_to_do() -> None:
    text = round_text(round_(1, effective={"mem_fraction_static": 0.86, "max_running_requests": 3}))
    for word in (
        "r1: verified", "hybrid-27b-fp8", "KV tokens", "262,294", "3.14 GiB", "thinking", "1.5 s", "FAIL",
        "0.80 s p50, of 24", "66.6 %", "low-headroom", "Lower it.", "loading weights", "max_running_requests",
    ):  # fmt: skip
        assert word in text


def test_the_end_of_a_round_fits_the_eye_and_says_where_the_rest_is() -> None:
    whole, end = round_text(round_(4)), round_outcome(round_(4))
    assert "Flags" in whole and "Flags" not in end
    assert end.splitlines()[0] == whole.splitlines()[0]
    assert "Pools" in end and end.endswith("tuner show r4")


def test_a_diff_as_text_has_one_table_per_kind_flags_first() -> None:
    difference = diff(round_(1), round_(2, 0.98, boot=BootFacts(kv_tokens=340_294, mamba_slots=33)))
    text = diff_text(difference)
    lines = text.splitlines()
    assert lines[0] == "r1 -> r2"
    assert lines[1] == "+78,000 KV tokens for 24 slots."
    assert lines.index("Flags") < lines.index("Pools")
    assert "Measurements" not in lines
    row = next(line.split() for line in lines if "mem_fraction_static" in line)
    assert row == ["mem_fraction_static", "0.86", "0.98", "+0.12"]
    pools = next(line for line in lines if line.strip().startswith("KV tokens"))
    assert pools.split() == ["KV", "tokens", "262,294", "340,294", "+78,000", "better"]


def test_a_diff_as_markdown_is_a_table_that_no_text_can_break() -> None:
    difference = RoundDiff(
        old="r1",
        new="r2",
        flags_changed=(Change(name="served_model_name", old="a|b\n| c", new="<img src=x> `x` [y](z)"),),
        summary="A | B <script>",
    )
    markdown = diff_markdown(difference)
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert rows[0] == "| what | old | new | change | verdict |"
    assert rows[2] == r"| served_model_name | a\|b \| c | \<img src=x\> \`x\` \[y\](z) |  |  |"
    assert len(rows) == 3
    assert r"A \| B \<script\>" in markdown


def test_no_report_shows_a_secret() -> None:
    old, new = round_(1), round_(2, note="started with --api-key sk-live-123456")
    new = msgspec.structs.replace(new, recipe=new.recipe.with_flags({"api_key": "sk-other-987654"}))
    difference = diff(old, new)
    shown = [
        rounds_text([new, old]),
        rounds_markdown([summarise(new, old)]),
        round_text(new),
        round_markdown(new),
        diff_text(difference),
        diff_markdown(difference),
    ]
    assert all("123456" not in text and "987654" not in text for text in shown)


@settings(max_examples=80, deadline=None)
@given(words=st.text(max_size=40), cells=st.integers(20, 200))
def test_no_text_of_a_model_or_log_reaches_the_terminal_as_more_than_text(words: str, cells: int) -> None:
    check = CheckResult(name="thinking", verdict=Verdict.FAIL, reason=words)
    shown = round_(1, note=words, reason=words, checks=(check,), log_path=words)
    change = Change(name="x", old=words, new=1, verdict=ChangeVerdict.NOT_COMPARABLE)
    texts = (
        summaries_text([summarise(shown)], cells),
        round_text(shown, cells),
        round_markdown(shown),
        diff_text(RoundDiff(old="r1", new="r2", flags_changed=(change,), summary=words), cells),
    )
    for text in texts:
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert "\x7f" not in text
    assert len(summaries_text([summarise(shown)], cells).splitlines()) <= 3


def test_what_to_do_is_told_whole_on_a_narrow_terminal() -> None:
    remedy = "降低 mem_fraction_static to 0.95 or ask for fewer graphs, " * 4 + "then run it again."
    finding = Finding(id=FindingId.LOW_HEADROOM, severity=Severity.WARNING, title="Little is left. " * 9, remedy=remedy)
    check = CheckResult(name="thinking", verdict=Verdict.FAIL, reason="No answer came. " * 12 + "END")
    for cells in (60, 80, 120):
        text = round_text(round_(1, findings=(finding,), checks=(check,)), cells)
        said = "".join(text.split())
        assert "…" not in text and "END" in text
        assert all(word in said for word in remedy.split())


def test_a_rounds_list_for_another_program_has_all_of_it() -> None:
    long = summarise(round_(1, note="很长的备注" * 60))
    assert "很长的备注" * 60 in summaries_text([long], None) and "…" not in summaries_text([long], None)


def test_times_ratios_and_ports_are_told_as_such() -> None:
    old = round_(
        1,
        ready_seconds=15.6848,
        readings=Readings(
            at=1.0, itl_s=Spread(p50=0.0176, p95=0.02, count=200), prefix_hit_ratio=0.66610001, acceptance_length=2.51
        ),
        effective={"nccl_port": 30_000, "port": 30_000, "max_req_input_len": 262_138},
    )
    new = msgspec.structs.replace(
        old,
        number=2,
        ready_seconds=25.1,
        readings=Readings(
            at=1.0, itl_s=Spread(p50=0.03, p95=0.02, count=200), prefix_hit_ratio=0.66611469, acceptance_length=2.51001
        ),
        recipe=old.recipe.with_flags({"port": 30_001}),
        effective={"port": 30_001, "max_req_input_len": 262_138},
    )
    rows = {line.split("  ")[1].strip(): line for line in diff_text(diff(old, new)).splitlines() if line[:2] == "  "}
    assert "15.7 s" in rows["ready"] and "25.1 s" in rows["ready"]
    assert "17.6 ms" in rows["ITL p50"] and "30.0 ms" in rows["ITL p50"]
    assert "prefix hit ratio" not in rows and "acceptance length" not in rows
    assert "e-" not in diff_text(diff(old, new))
    assert rows["port"].split() == ["port", "30000", "30001"]
    shown = [line.split() for line in round_text(old).splitlines()]
    assert ["longest", "input,", "tokens", "-", "262,137"] in shown
