"""Rounds, one line each."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.rounds.model import RoundState
from tuner.rounds.summary import RoundSummary
from tuner.text import clip, plain, width
from tuner.ui.bench import FlagChange
from tuner.ui.wording import NONE, STATE_WORDS, changes_line, tokens
from tuner.units import format_seconds

_ENDED_EARLY = (RoundState.FAILED, RoundState.ABORTED, RoundState.REFUSED)
_STATE_SIGNS = {
    RoundState.STARTING: ("◐", "$primary"),
    RoundState.CHECKING: ("◐", "$primary"),
    RoundState.VERIFIED: ("✓", "$success"),
    RoundState.UNVERIFIED: ("!", "$warning"),
    RoundState.FAILED: ("✗", "$error"),
    RoundState.ABORTED: ("–", "$foreground 60%"),
    RoundState.REFUSED: ("✗", "$warning"),
}
#: Cells of the signs and the name, and of the columns from KV tokens to TTFT.
_NAME = 12
_FIGURES = 39


def head(cells: int) -> Content:
    """The column heads of ``line``."""
    changed = _changed_width(cells)
    text = (
        f"    {'Round':<8}{'Changed':<{changed}}{'KV tokens':>10}{'Slots':>6}{'Req':>5}{'Checks':>8}{'TTFT':>8}"
        "  Verdict, note"
    )
    return Content.assemble((clip(text, cells), "$foreground 60%"))


def line(summary: RoundSummary, cells: int, *, running: bool = False, mark: str = "") -> Content:
    """A round on one line of ``cells``: what changed, pools, checks, latency, verdict and note, or why it failed."""
    sign, style = _STATE_SIGNS[summary.state]
    changed = _changed_width(cells)
    what = _changed_words(summary)
    name = f"{summary.name}{' sim' if summary.simulated else ''}"
    start = Content.assemble(
        ("●" if running else " ", "bold $success"),
        (f"{mark or ' '}", "bold reverse" if mark else ""),
        (f"{sign} ", style),
        (f"{name:<8}", "bold"),
        f"{_pad(clip(plain(what), changed - 1), changed)}",
    )
    room = cells - _NAME - changed
    if summary.state in _ENDED_EARLY:
        return Content.assemble(start, (clip(failure_of(summary), room), style))
    counted = f"{summary.checks_passed}/{summary.checks_total}" if summary.checks_total else NONE
    good = summary.checks_total and summary.checks_passed == summary.checks_total
    ttft = format_seconds(summary.ttft_p50_s) if summary.ttft_p50_s is not None else NONE
    tail = " · ".join(t for t in (_verdict(summary), plain(summary.note).replace("\n", " ")) if t)
    return Content.assemble(
        start,
        f"{tokens(summary.kv_tokens):>10}{tokens(summary.mamba_slots):>6}{tokens(summary.max_running_requests):>5}",
        (f"{counted:>6} {'✓' if good else '✗' if summary.checks_total else ' '}", "$success" if good else "$warning"),
        f"{ttft:>8}  ",
        clip(tail, max(0, room - _FIGURES)),
    )


def changes_of(summary: RoundSummary) -> str:
    """What a round changed from the one before."""
    return changes_line(tuple(FlagChange(name, old, new) for name, (old, new) in summary.changed.items()))


def failure_of(summary: RoundSummary) -> str:
    """Where and why a round ended early."""
    where = f" in {summary.phase}" if summary.phase else ""
    reason = plain(summary.reason).replace("\n", " ")
    return f"{STATE_WORDS[summary.state]}{where}{': ' if reason else ''}{reason}"


def _changed_words(summary: RoundSummary) -> str:
    return changes_of(summary) or ("first round" if summary.number == 1 else "same flags")


def _verdict(summary: RoundSummary) -> str:
    if summary.verdict:
        return summary.verdict
    return "" if summary.state is RoundState.VERIFIED else STATE_WORDS[summary.state]


def _changed_width(cells: int) -> int:
    return max(14, min(44, cells - _NAME - _FIGURES - 14))


def _pad(text: str, cells: int) -> str:
    return text + " " * max(0, cells - width(text))


class RoundsBrief(Widget):
    """The newest rounds in two lines each, for the side of the Tune screen."""

    lines: reactive[tuple[RoundSummary, ...]] = reactive(())

    def render(self) -> Content:
        """As many as fit."""
        cells = self.size.width or 40
        if not self.lines:
            return Content.assemble(("No rounds yet.", "$foreground 50%"))
        rows: list[Content] = []
        for summary in self.lines[: max(1, (self.size.height or 40) // 3)]:
            sign, style = _STATE_SIGNS[summary.state]
            rows.append(
                Content.assemble(
                    (f"{sign} ", style),
                    (f"{summary.name}{' simulated' if summary.simulated else ''}  ", "bold"),
                    clip(_changed_words(summary), cells - 20),
                )
            )
            if summary.state in _ENDED_EARLY:
                rows.append(Content.assemble(("  " + clip(failure_of(summary), cells - 2), style)))
            else:
                pools = f"{tokens(summary.kv_tokens)} tok · {tokens(summary.mamba_slots)} slots"
                ready = f" · up in {format_seconds(summary.ready_seconds)}" if summary.ready_seconds else ""
                rows.append(Content.assemble((clip(f"  {pools}{ready} · {_verdict(summary) or 'verified'}", cells),
                                              "$foreground 70%")))  # fmt: skip
            rows.append(Content(""))
        return Content("\n").join(rows)
