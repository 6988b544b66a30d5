"""Rounds and differences as text for a terminal and as Markdown to share. Pure.

Nothing of a model, a log or a note is taken for markup, and no secret gets out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from tuner.checks.model import Verdict
from tuner.measure.report import measurement_text, physics_text
from tuner.metrics.words import spread_words
from tuner.planner.accuracy import accuracy_text
from tuner.recipe.checking import left_out
from tuner.redact import redact, redact_text
from tuner.rounds.ab import Side
from tuner.rounds.columns import (
    LEAST_CELLS,
    cells_before_last,
    clipped_table,
    escaped,
    markdown_table,
    one_line,
    padded_rows,
    wrapped_table,
)
from tuner.rounds.measures import first_answers, longest_input_told
from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import FIRST_ANSWERS, Change, ChangeVerdict, Round, RoundDiff, RoundState
from tuner.rounds.summary import RoundSummary
from tuner.rounds.table import RoundTable, TableRow
from tuner.rounds.values import HIT_RATIO, NONE, percent_text, value_text
from tuner.text import clip, width
from tuner.units import format_gib, format_seconds, format_tokens

Rows: TypeAlias = list[tuple[str, ...]]

SIMULATED = "SIMULATED, no real SGLang"
#: In place of the outcome of a round that cannot be read.
DAMAGED = "damaged"

#: End of the names of changes that are times; the value has its unit.
_IN_SECONDS = ", s"
_CHANGED_CELLS = 40
_VERDICTS = {Verdict.PASS: "pass", Verdict.FAIL: "FAIL", Verdict.CANNOT_TELL: "cannot tell"}


def summaries_text(lines: Sequence[RoundSummary], cells: int | None = 140) -> str:
    """Lines of the rounds list as a table at most ``cells`` wide; None: as wide as it is, with nothing cut off.

    Where the columns leave no room for the remark, what changed and the remark are in a line of their own.
    """
    if not lines:
        return "No rounds yet: tuner run starts the first one."
    rows = [_row(line) for line in lines]
    if cells is None:
        return padded_rows(_HEAD, rows)
    at = _HEAD.index("changed")
    clipped = [(*row[:at], clip(row[at], _CHANGED_CELLS), *row[at + 1 :]) for row in rows]
    if cells_before_last(_HEAD, clipped) + LEAST_CELLS > cells:
        return _two_lined(rows, cells)
    return clipped_table(_HEAD, clipped, cells)


def rounds_markdown(lines: Sequence[RoundSummary]) -> str:
    """Lines of the rounds list as a Markdown table."""
    return markdown_table(_HEAD, [_row(line) for line in lines])


def diff_text(difference: RoundDiff, cells: int = 120) -> str:
    """A difference as text: one table per kind of thing that changed."""
    parts = [f"{difference.old} -> {difference.new}{_simulated(difference.simulated)}", one_line(difference.summary)]
    for title, changes in _sections(difference):
        parts += ["", title, wrapped_table(_DIFF_HEAD, [_change(change) for change in changes], cells, indent="  ")]
    return "\n".join(parts)


def diff_markdown(difference: RoundDiff) -> str:
    """A difference as Markdown, to paste into an issue or a note."""
    parts = [f"## {difference.old} → {difference.new}{_simulated(difference.simulated)}", ""]
    parts.append(escaped(difference.summary))
    for title, changes in _sections(difference):
        parts += ["", f"### {title}", "", markdown_table(_DIFF_HEAD, [_change(change) for change in changes])]
    return "\n".join(parts) + "\n"


def table_text(many: RoundTable, cells: int = 140) -> str:
    """Several rounds beside each other as text; ``*`` marks the best value of a line."""
    parts = [f"{', '.join(many.rounds)}{_simulated(many.simulated)}", one_line(many.summary)]
    head = ("what", *many.rounds)
    for title, rows in _groups(many):
        parts += ["", title, wrapped_table(head, rows, cells, indent="  ")]
    return "\n".join(parts)


def table_markdown(many: RoundTable) -> str:
    """Several rounds beside each other as Markdown."""
    parts = [f"## {', '.join(many.rounds)}{_simulated(many.simulated)}", "", escaped(many.summary)]
    for title, rows in _groups(many):
        parts += ["", f"### {title}", "", markdown_table(("what", *many.rounds), rows)]
    return "\n".join(parts) + "\n"


#: Tables of a round that tell how it ended.
_OUTCOME = ("Pools", "Checks", "Findings")


def round_text(round_: Round, cells: int = 120) -> str:
    """A round in full: state, flags asked and in effect, pools predicted and actual, checks, times, findings."""
    parts = [_title(round_), *_facts(round_)]
    for title, head, rows in _tables(round_):
        parts += ["", title, wrapped_table(head, rows, cells, indent="  ")]
    for title, lines in _measured(round_):
        parts += ["", title, *(f"  {line}" for line in lines)]
    return "\n".join(parts)


def round_outcome(round_: Round, cells: int = 120) -> str:
    """What somebody who waited for a round wants to know: how it ended, its pools, its checks, what was found."""
    parts = [_title(round_), *_facts(round_)]
    for title, head, rows in _tables(round_):
        if title in _OUTCOME:
            parts += ["", title, wrapped_table(head, rows, cells, indent="  ")]
    return "\n".join([*parts, "", f"The rest: tuner show {round_.name}"])


def round_markdown(round_: Round) -> str:
    """A round in full as Markdown."""
    parts = [f"## {_title(round_)}", "", *(f"- {escaped(fact)}" for fact in _facts(round_))]
    for title, head, rows in _tables(round_):
        parts += ["", f"### {title}", "", markdown_table(head, rows)]
    for title, lines in _measured(round_):
        parts += ["", f"### {title}", "", "```text", *(line.replace("`", "'") for line in lines), "```"]
    return "\n".join(parts) + "\n"


def ab_text(one: Side, other: Side, changes: Sequence[Change], cells: int = 120) -> str:
    """Two settings against each other: both with their rounds, and each measure with its verdict."""
    parts = [
        one_line(f"A {one.value}: {', '.join(one.rounds)}"),
        one_line(f"B {other.value}: {', '.join(other.rounds)}"),
    ]
    rows = [_change(change) for change in changes]
    if not rows:
        return "\n".join([*parts, "  Nothing was measured on both sides."])
    return "\n".join([*parts, wrapped_table(("what", "A", "B", "change", "verdict"), rows, cells, indent="  ")])


_HEAD = (
    "round",
    "when",
    "outcome",
    "changed",
    "KV tokens",
    "state slots",
    "requests",
    "checks",
    "ready",
    "TTFT",
    "remark",
)
#: Heads where there is little room: as on the Rounds screen.
_SHORT = {"state slots": "slots", "requests": "req"}
#: Columns that are left out where even a line of figures is too long, the first one first.
_SPARE = ("ready", "when", "checks", "TTFT")
#: Cells before the second line of a round.
_UNDER = 10
_DIFF_HEAD = ("what", "old", "new", "change", "verdict")


def _groups(many: RoundTable) -> list[tuple[str, Rows]]:
    marks = ("best trade", *("yes" if name in many.pareto else "" for name in many.rounds))
    outcome: Rows = [("outcome", *many.outcomes)]
    groups = [
        ("Flags", [_table_row(row, many.rounds) for row in many.flags]),
        ("In effect", [_table_row(row, many.rounds) for row in many.effective]),
        ("Measured", outcome + [_table_row(row, many.rounds) for row in many.measures] + [marks]),
    ]
    return [(title, rows) for title, rows in groups if rows]


def _table_row(row: TableRow, rounds: Sequence[str]) -> tuple[str, ...]:
    cells = row.shown or tuple(value_text(row.name, redact({row.name: value})[row.name]) for value in row.values)
    unlike = len(row.best) < len(rounds)
    return row.name, *(
        f"{cell} *" if name in row.best and unlike else cell for name, cell in zip(rounds, cells, strict=True)
    )


def _row(line: RoundSummary) -> tuple[str, ...]:
    changed = ", ".join(
        f"{name} {value_text(name, old)} -> {value_text(name, new)}" for name, (old, new) in line.changed.items()
    )
    checks = f"{line.checks_passed}/{line.checks_total}" if line.checks_total else NONE
    failed = line.state in (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED, RoundState.UNVERIFIED)
    where = f"at {line.phase}: " if line.phase and failed else ""
    remarks = (
        line.verdict,
        " ".join(f"#{tag}" for tag in line.tags),
        line.note,
        f"{where}{line.reason}" if line.reason else "",
        line.damaged,
    )
    return (
        f"{line.name} (sim)" if line.simulated else line.name,
        time.strftime("%m-%d %H:%M", time.localtime(line.started_at)) if line.started_at else NONE,
        DAMAGED if line.damaged else str(line.state),
        one_line(changed) or NONE,
        _count(line.kv_tokens),
        _count(line.mamba_slots),
        _count(line.max_running_requests),
        checks,
        _seconds(line.ready_seconds),
        _seconds(line.ttft_p50_s),
        one_line("; ".join(remark for remark in remarks if remark)),
    )


def _sections(difference: RoundDiff) -> list[tuple[str, Sequence[Change]]]:
    sections = (
        ("Flags", difference.flags_changed),
        ("In effect", difference.effective_changed),
        ("Pools", difference.pools),
        ("Checks", difference.checks),
        ("Measurements", difference.metrics),
    )
    return [(title, changes) for title, changes in sections if changes]


def _change(change: Change) -> tuple[str, ...]:
    # "changed" says nothing that the line itself does not say.
    verdict = "" if change.verdict is ChangeVerdict.CHANGED else str(change.verdict)
    old, new = (redact({change.name: value})[change.name] for value in (change.old, change.new))
    old, new = value_text(change.name, old), value_text(change.name, new)
    return change.name.removesuffix(_IN_SECONDS), old, new, change.change, verdict


def _title(round_: Round) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(round_.started_at))
    verdict = f", {round_.verdict}" if round_.verdict else ""
    return f"{round_.name}: {round_.state}{verdict}, {when}{_simulated(round_.simulated)}"


def _facts(round_: Round) -> list[str]:
    facts = []
    if round_.reason:
        facts.append(f"at {round_.phase}: {round_.reason}" if round_.phase else round_.reason)
    if round_.note:
        facts.append(f"note: {round_.note}")
    if round_.tags:
        facts.append(f"tags: {', '.join(round_.tags)}")
    facts.append(f"model: {round_.recipe.model_path or round_.recipe.tuner.model_shape or 'not told'}")
    server = f"SGLang {round_.sglang_version or 'of unknown version'} on {round_.gpu_name or 'an unknown card'}"
    facts.append(f"{server}, driver {round_.driver_version}" if round_.driver_version else server)
    if round_.ready_seconds is not None:
        facts.append(f"ready after {format_seconds(round_.ready_seconds)}{_first_answers(round_)}")
    if round_.accuracy is not None and (off := accuracy_text(round_.accuracy)):
        basis = f"calibrated by {round_.accuracy.calibrated_by}" if round_.accuracy.calibrated_by else "by the formula"
        facts.append(f"actual less planned ({basis}): {off}")
    if round_.checks and (unchecked := left_out(round_.recipe, [check.name for check in round_.checks])):
        facts.append(f"not checked, as tuner.checks of the recipe says: {', '.join(unchecked)}")
    if round_.fingerprint:
        facts.append("files: " + ", ".join(f"{name} {value}" for name, value in round_.fingerprint.items()))
    if round_.tuner_version:
        facts.append(f"tuner {round_.tuner_version}")
    if round_.log_path:
        facts.append(f"log: {round_.log_path}")
    return [one_line(fact) for fact in facts]


def _first_answers(round_: Round) -> str:
    """What the first requests after ready took, together and each."""
    together = first_answers(round_)
    if together is None:
        return ""
    each = ", ".join(format_seconds(s) for s in round_.first_answers_s)
    return f", {FIRST_ANSWERS} {format_seconds(together)}" + (f" ({each})" if each else "")


def _tables(round_: Round) -> list[tuple[str, Sequence[str], Rows]]:
    tables: list[tuple[str, Sequence[str], Rows]] = [
        ("Pools", ("what", "predicted", "actual"), _pools(round_)),
        ("Checks", ("check", "verdict", "time", "reason"), _checks(round_)),
        ("Readings", ("what", "value"), _readings(round_)),
        ("Phases", ("phase", "time"), [(name, _seconds(s)) for name, s in round_.phase_seconds.items()]),
        ("Findings", ("finding", "severity", "what", "what to do"), _findings(round_)),
        ("Flags", ("flag", "asked", "in effect"), _flags(round_)),
        ("Environment", ("variable", "value"), _environment(round_)),
    ]
    return [table for table in tables if table[2]]


def _pools(round_: Round) -> Rows:
    plan, boot = round_.plan, round_.boot
    counts = (
        ("KV tokens", "kv_tokens"),
        ("state slots", "mamba_slots"),
        ("requests", "max_running_requests"),
    )
    both = [(name, getattr(plan, field, None), getattr(boot, field, None)) for name, field in counts]
    longest = ("longest input, tokens", getattr(plan, "longest_input_tokens", None), longest_input_told(round_))
    told: Rows = [(n, _count(p), _count(a)) for n, p, a in (*both, longest) if p is not None or a is not None]
    free = free_at_ready_gib(round_)
    if plan is not None or free is not None:
        predicted = format_gib(plan.ready_free_gib) if plan else NONE
        told.append(("free at ready", predicted, format_gib(free) if free is not None else NONE))
    return told


def _checks(round_: Round) -> Rows:
    return [
        (check.name, _VERDICTS[check.verdict], _seconds(check.seconds), one_line(check.reason))
        for check in round_.checks
    ]


def _readings(round_: Round) -> Rows:
    readings = round_.readings
    if readings is None:
        return []
    rows: Rows = []
    for name, spread in (("TTFT", readings.ttft_s), ("ITL", readings.itl_s), ("whole request", readings.e2e_s)):
        if spread is not None:
            rows.append((name, spread_words(spread)))
    if readings.prefix_hit_ratio is not None:
        rows.append((HIT_RATIO, percent_text(readings.prefix_hit_ratio)))
    if readings.acceptance_length is not None:
        rows.append(("acceptance length", f"{readings.acceptance_length:.2f}"))
    if readings.decode_tokens_per_s is not None:
        rows.append(("decode", f"{readings.decode_tokens_per_s:,.0f} tokens/s"))
    if readings.notice:
        rows.append(("notice", one_line(readings.notice)))
    return rows


def _measured(round_: Round) -> list[tuple[str, list[str]]]:
    """Loads that were put on it, and what one request alone gets."""
    parts = [("Loads", [measurement_text(measured) for measured in round_.measurements])]
    if round_.physics is not None:
        parts.append(("One request alone", [physics_text(round_.physics)]))
    return [(title, redact_text("\n".join(texts)).splitlines()) for title, texts in parts if texts]


def _findings(round_: Round) -> Rows:
    return [(str(f.id), str(f.severity), one_line(f.title), one_line(f.remedy)) for f in round_.findings]


def _flags(round_: Round) -> Rows:
    asked, effective = redact(round_.recipe.flags), redact(round_.effective)
    names = dict.fromkeys((*asked, *effective))
    return [(name, _asked(asked, name), _asked(effective, name)) for name in names]


def _environment(round_: Round) -> Rows:
    variables = redact(round_.environment or round_.recipe.environment)
    return [(name, one_line(str(value))) for name, value in variables.items()]


def _asked(values: dict[str, Any], name: str) -> str:
    return value_text(name, values[name]) if name in values else NONE


def _simulated(simulated: bool) -> str:
    return f" ({SIMULATED})" if simulated else ""


def _count(count: int | None) -> str:
    return NONE if count is None else format_tokens(count)


def _seconds(seconds: float | None) -> str:
    return NONE if seconds is None else format_seconds(seconds)


def _two_lined(rows: Sequence[Sequence[str]], cells: int) -> str:
    """Rows of the rounds list in two lines each: the figures, and under them what changed and the remark."""
    told = [dict(zip(_HEAD, row, strict=True)) for row in rows]
    names = [name for name in _HEAD if name not in ("changed", "remark")]
    for spare in _SPARE:
        figures = [[row[name] for name in names] for row in told]
        if cells_before_last([*_short(names), ""], [[*row, ""] for row in figures]) - 2 <= cells:
            break
        names.remove(spare)
    head, *lines = padded_rows(_short(names), [[row[name] for name in names] for row in told]).splitlines()
    room = max(LEAST_CELLS, cells - _UNDER)
    under = []
    for row in told:
        remark = row["remark"]
        changed = row["changed"] if row["changed"] != NONE else ""
        changed = clip(changed, max(room // 2, room - width(remark) - 2) if remark else room)
        under.append(clip("; ".join(part for part in (changed, remark) if part), room))
    pairs = [(line, f"{'':{_UNDER}}{words}") if words else (line,) for line, words in zip(lines, under, strict=True)]
    return "\n".join([head, *(line for pair in pairs for line in pair)])


def _short(names: Sequence[str]) -> list[str]:
    return [_SHORT.get(name, name) for name in names]
