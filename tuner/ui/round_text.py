"""A round in full, as the rounds list and its details show it. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.content import Content

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Severity
from tuner.measure.report import load_text, measurement_text, physics_text, rates_text
from tuner.planner.accuracy import accuracy_text
from tuner.recipe.checking import left_out
from tuner.rounds.measures import first_answers
from tuner.rounds.model import FIRST_ANSWERS, Round, RoundState
from tuner.rounds.summary import RoundSummary
from tuner.rounds.values import seconds_text
from tuner.text import clip, plain, width
from tuner.ui.widgets.findings_list import findings_text
from tuner.ui.widgets.set_in import set_in
from tuner.ui.wording import (
    NONE,
    STATE_WORDS,
    VERDICT_MARKS,
    failure,
    flag_value,
    pools_of,
    signed,
    spread,
    tokens,
    took,
)
from tuner.units import format_seconds

_LABEL = "$foreground 60%"
_LABEL_CELLS = 13
_ENDED_EARLY = (RoundState.FAILED, RoundState.REFUSED)
_VERDICT_STYLES = {Verdict.PASS: "$success", Verdict.FAIL: "bold $error", Verdict.CANNOT_TELL: "bold $warning"}


def round_text(round_: Round, cells: int, *, full: bool = False, good: str = "") -> Content:
    """State, pools planned and actual, checks, times, note; with ``full`` also flags, phases, evidence, answers.

    Of a round that ended early first what was found, as why it did is what one looks for, and behind that the round to
    go back to: ``good``, the last good one.
    """
    found = [findings_text(round_.findings, cells, evidence=full)] if round_.findings else []
    early = round_.state in _ENDED_EARLY
    parts = [_title(round_), *_reason(round_)]
    if early:
        parts += found
        back = f"{good} is the last good round: on it, u takes its flags to Tune."
        parts += [Content.assemble((back, "$primary"))] if good else []
    parts += [*_pools(round_, cells), *_checks(round_, cells, full=full), *_latency(round_, cells)]
    parts += _measured(round_, cells, full=full)
    if round_.note:
        parts.append(_pair("Note", plain(round_.note), cells=cells))
    parts += [] if early else found
    if full:
        parts += _phases(round_, cells) + _flags(round_, cells) + _origin(round_, cells)
    return Content("\n").join(parts)


def ending_text(round_: Round, cells: int) -> Content:
    """How a round came out, short: its pools and times, or where and why it ended, with what to do."""
    lines = _reason(round_)
    kv, slots, requests = pools_of(round_)
    if kv is not None:
        words = [f"{kv:,} KV tokens"]
        words += [f"{slots:,} state slots"] if slots else []
        words += [f"{requests:,} requests"] if requests is not None else []
        lines.append(Content.assemble((clip(" · ".join(words), cells), "bold")))
    lines += _latency(round_, cells)
    if _missed(round_.checks):
        lines.append(missed_text(round_.checks, cells))
    if round_.findings:
        lines.append(findings_text(round_.findings, cells, evidence=round_.state in _ENDED_EARLY))
    return Content("\n").join(lines)


def known_words(line: RoundSummary | None) -> str:
    """What the history still knows of a round that cannot be read, after the sentence that says so."""
    if line is None:
        return ""
    told = [STATE_WORDS[line.state]] if not line.phase else [f"{STATE_WORDS[line.state]} in {plain(line.phase)}"]
    counted = (line.kv_tokens, line.mamba_slots, line.max_running_requests)
    names = ("KV tokens", "state slots", "requests")
    told += [f"{count:,} {what}" for count, what in zip(counted, names, strict=True) if count is not None]
    told += [f"note: {plain(line.note)}"] if line.note else []
    return f"\nStill known: {', '.join(told)}. Its log and the other rounds are as they were."


def _title(round_: Round) -> Content:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(round_.started_at))
    mark = " SIMULATED — not a real SGLang " if round_.simulated else ""
    verdict = f" · {round_.verdict}" if round_.verdict else ""
    return Content.assemble(
        (f"{round_.name} ", "bold $primary"),
        (f"{STATE_WORDS[round_.state]}{verdict} · {when} ", "bold"),
        (mark, "bold $mark-text on $mark" if mark else ""),
    )


def _reason(round_: Round) -> list[Content]:
    why = failure(round_)
    if why and any(f.severity is Severity.FATAL and f.title in round_.reason for f in round_.findings):
        # The finding says it below, with its evidence.
        why = f"{STATE_WORDS[round_.state]} in {round_.phase}" if round_.phase else STATE_WORDS[round_.state]
    if why:
        return [Content.assemble((why, "bold $error" if round_.state is not RoundState.ABORTED else "$warning"))]
    if round_.state is RoundState.UNVERIFIED and round_.reason and not _missed(round_.checks):
        return [Content.assemble((plain(round_.reason), "$warning"))]
    return []


def missed_text(results: Sequence[CheckResult], cells: int) -> Content:
    """The checks that did not pass, each with its whole reason."""
    return Content("\n").join(
        set_in(
            Content.assemble(
                (f"{VERDICT_MARKS[r.verdict]} {r.name}: ", _VERDICT_STYLES[r.verdict]),
                plain(r.reason).replace("\n", " "),
            ),
            cells,
            2,
        )
        for r in _missed(results)
    )


def _missed(results: Sequence[CheckResult]) -> list[CheckResult]:
    return [r for r in results if r.verdict is not Verdict.PASS]


def _pools(round_: Round, cells: int) -> list[Content]:
    plan, boot = round_.plan, round_.boot
    if plan is None and boot is None:
        return []
    actual = boot is not None and boot.kv_tokens is not None
    lines = []
    rows = (
        ("KV tokens", boot.kv_tokens if boot else None, plan.kv_tokens if plan else None),
        ("State slots", boot.mamba_slots if boot else None, plan.mamba_slots if plan else None),
        ("Requests", boot.max_running_requests if boot else None, plan.max_running_requests if plan else None),
    )
    for label, got, planned in rows:
        if not got and not planned:
            continue
        if actual:
            error = signed(got, planned)
            note = f"planned {tokens(planned)}" + (f", {error} off" if error not in ("", "=") else ", as planned")
            lines.append(_pair(label, f"{tokens(got):>9}  ", note if planned is not None else "", cells=cells))
        else:
            lines.append(_pair(label, f"{tokens(planned):>9}  ", "planned", cells=cells))
    if round_.accuracy is not None:
        lines.append(_pair("Plan error", accuracy_text(round_.accuracy), cells=cells))
    return lines


def _checks(round_: Round, cells: int, *, full: bool) -> list[Content]:
    lines = []
    for check in round_.checks:
        head = f"{check.name}: {plain(check.reason)}"
        lines.append(
            Content.assemble(
                (f"{VERDICT_MARKS[check.verdict]} ", _VERDICT_STYLES[check.verdict]),
                (clip(head.replace("\n", " "), cells - 12), ""),
                (f"  {format_seconds(check.seconds)}", _LABEL),
            )
        )
        if full and check.came:
            lines.append(
                Content.assemble(("    answer: " + clip(plain(check.came).replace("\n", " "), cells - 14), _LABEL))
            )
    if lines and (unchecked := left_out(round_.recipe, [check.name for check in round_.checks])):
        told = f"– not checked, as tuner.checks says: {', '.join(unchecked)}"
        lines.append(set_in(Content.styled(told, _LABEL), cells, 2))
    return lines


def _latency(round_: Round, cells: int) -> list[Content]:
    words = []
    if round_.ready_seconds is not None:
        words.append(f"ready in {format_seconds(round_.ready_seconds)}")
    if (together := first_answers(round_)) is not None:
        words.append(f"{FIRST_ANSWERS} {format_seconds(together)}")
    if round_.readings is not None:
        if round_.readings.ttft_s is not None:
            words.append(f"TTFT {spread(round_.readings.ttft_s, milliseconds=False)} p50/p95")
        if round_.readings.itl_s is not None:
            words.append(f"ITL {spread(round_.readings.itl_s, milliseconds=True)} p50/p95")
    return [_pair("Times", " · ".join(words), cells=cells)] if words else []


def _measured(round_: Round, cells: int, *, full: bool) -> list[Content]:
    """Loads that were put on it, the newest one in a line or all of them in full; and one request alone."""
    if not full:
        if not round_.measurements:
            return []
        newest = round_.measurements[-1]
        times = (("TTFT", newest.ttft_s), ("ITL", newest.itl_s))
        told = [f"{label} {seconds_text(stat.p50)}" for label, stat in times if stat is not None]
        if newest.output_tokens_per_s:
            told.append(f"{rates_text(newest.output_tokens_per_s)} tokens/s")
        return [_pair("Load", f"{plain(load_text(newest.load))}: {' · '.join(told) or 'no answer came'}", cells=cells)]
    texts = [measurement_text(measured) for measured in round_.measurements]
    if round_.physics is not None:
        texts.append(physics_text(round_.physics))
    if not texts:
        return []
    return [Content(""), Content.assemble(("Measured", "bold")), *(Content(text) for text in texts)]


def _phases(round_: Round, cells: int) -> list[Content]:
    if not round_.phase_seconds:
        return []
    steps = " · ".join(f"{name} {took(seconds)}" for name, seconds in round_.phase_seconds.items())
    return [Content(""), _pair("Phases", steps, cells=cells)]


def _flags(round_: Round, cells: int) -> list[Content]:
    lines = [Content(""), Content.assemble(("Flags asked, and what is in effect where it differs", "bold"))]
    for name, asked in round_.recipe.flags.items():
        effect = round_.effective.get(name)
        differs = effect is not None and effect != asked
        wide = max(28, width(name) + 1)
        lines.append(
            Content.assemble(
                (f"  {name}{' ' * (wide - width(name))}", _LABEL),
                clip(flag_value(name, asked), cells - wide - 4),
                (f"  → {flag_value(name, effect)} in effect" if differs else "", "bold $warning"),
            )
        )
    return lines


def _origin(round_: Round, cells: int) -> list[Content]:
    version, card = round_.sglang_version or NONE, round_.gpu_name or "a GPU not told"
    words = f"{version} on {card}, driver {round_.driver_version or NONE}"
    lines = [Content(""), _pair("SGLang", words, cells=cells)]
    if round_.log_path:
        lines.append(_pair("Log", plain(round_.log_path), cells=cells))
    return lines


def _pair(label: str, text: str, note: str = "", *, cells: int) -> Content:
    return set_in(Content.assemble((f"{label:<{_LABEL_CELLS}}", _LABEL), text, (note, _LABEL)), cells, _LABEL_CELLS)
