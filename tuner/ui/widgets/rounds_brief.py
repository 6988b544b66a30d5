"""Rounds, one line each."""

from __future__ import annotations

from collections.abc import Iterable

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
_MARK_STYLES = {"keep": "bold $success", "reject": "bold $warning"}
#: Beside a round that no other one beats in longest input, requests and TTFT together.
BEST = "*"
#: Cells of the signs and the name.
_NAME = 12
#: From here on columns have their whole names.
_ROOMY = 130


def head(cells: int) -> Content:
    """The column heads of ``line``; what is short where there is no room is "state slots" and "requests"."""
    changed, slots, requests = _changed_width(cells), "Slots", "Req"
    if _roomy(cells):
        slots, requests = "State slots", "Requests"
    text = (
        f"    {'Round':<8}{'Changed':<{changed}}{'KV tokens':>10}{slots:>{_slots(cells)}}{requests:>{_requests(cells)}}"
        f"{'Checks':>8}{'TTFT':>8}  Verdict, tags, note"
    )
    return Content.assemble((clip(text, cells), "$foreground 60%"))


def line(
    summary: RoundSummary, cells: int, *, running: bool = False, mark: str = "", best: bool = False, good: bool = False
) -> Content:
    """A round on one line of ``cells``: what changed, pools, checks, latency, verdict, tags and note, or why it failed.

    ``best``: no other round beats it in everything. ``good``: it is the one to go back to.
    """
    sign, style = ("!", "bold $error") if summary.damaged else _STATE_SIGNS[summary.state]
    changed = _changed_width(cells)
    name = f"{summary.name}{' sim' if summary.simulated else ''}"
    start = Content.assemble(
        ("●" if running else " ", "bold $success"),
        (f"{mark or ' '}", "bold reverse" if mark else ""),
        (sign, style),
        (BEST if best else " ", "bold $primary"),
        (f"{name:<8}", "bold"),
        f"{_pad(clip(plain(_changed_words(summary)), changed - 1), changed)}",
    )
    room = cells - _NAME - changed
    # Where there is little room, what runs need not say that it is good.
    said = _said(summary, good=("last good" if _roomy(cells) else "" if running else "good") if good else "")
    note = plain(summary.note).replace("\n", " ")
    if summary.damaged:
        return Content.assemble(start, _joined((*said, (_damage(summary), style)), room))
    if summary.state in _ENDED_EARLY:
        return Content.assemble(start, _joined((*said, (failure_of(summary), style), (note, "")), room))
    if not summary.verdict and summary.state is not RoundState.VERIFIED:
        said.insert(0, (STATE_WORDS[summary.state], "$warning"))
    counted = f"{summary.checks_passed}/{summary.checks_total}" if summary.checks_total else NONE
    passed = summary.checks_total and summary.checks_passed == summary.checks_total
    ttft = format_seconds(summary.ttft_p50_s) if summary.ttft_p50_s is not None else NONE
    pools = (
        f"{tokens(summary.kv_tokens):>10}{tokens(summary.mamba_slots):>{_slots(cells)}}"
        f"{tokens(summary.max_running_requests):>{_requests(cells)}}"
    )
    return Content.assemble(
        start,
        pools,
        (
            f"{counted:>6} {'✓' if passed else '✗' if summary.checks_total else ' '}",
            "$success" if passed else "$warning",
        ),
        f"{ttft:>8}  ",
        _joined((*said, (note, "")), max(0, room - _figures(cells))),
    )


def _said(summary: RoundSummary, *, good: str) -> list[tuple[str, str]]:
    """What the operator said of a round, and what follows from it."""
    said = []
    if summary.verdict:
        said.append((summary.verdict, _MARK_STYLES.get(summary.verdict, "")))
    if good:
        said.append((good, "bold $success"))
    if summary.tags:
        said.append((" ".join(f"#{plain(tag)}" for tag in summary.tags), "$primary"))
    return said


def _joined(parts: Iterable[tuple[str, str]], cells: int) -> Content:
    """Texts with a dot between them, cut at ``cells``."""
    pieces: list[Content | str | tuple[str, str]] = []
    left = cells
    for text, style in parts:
        dot = " · " if pieces else ""
        if not text or left <= width(dot):
            continue
        shown = clip(text, left - width(dot))
        pieces += [dot, (shown, style)]
        left -= width(dot) + width(shown)
    return Content.assemble(*pieces)


def changes_of(summary: RoundSummary) -> str:
    """What a round changed from the one before."""
    return changes_line(tuple(FlagChange(name, old, new) for name, (old, new) in summary.changed.items()))


def failure_of(summary: RoundSummary) -> str:
    """Where and why a round ended early."""
    where = f" in {summary.phase}" if summary.phase else ""
    reason = plain(summary.reason).replace("\n", " ")
    return f"{STATE_WORDS[summary.state]}{where}{': ' if reason else ''}{reason}"


def _damage(summary: RoundSummary) -> str:
    """Why a round cannot be read, without its name over again."""
    return f"damaged: {plain(summary.damaged).partition(': ')[2]}"


def _changed_words(summary: RoundSummary) -> str:
    if summary.damaged:
        return NONE
    return changes_of(summary) or ("first round" if summary.number == 1 else "same flags")


def _verdict(summary: RoundSummary) -> str:
    if summary.verdict:
        return summary.verdict
    return "" if summary.state is RoundState.VERIFIED else STATE_WORDS[summary.state]


def _changed_width(cells: int) -> int:
    room = cells - _NAME - _figures(cells)
    return max(14, min(44, room - max(14, room // 2)))


def _roomy(cells: int) -> bool:
    return cells >= _ROOMY


def _slots(cells: int) -> int:
    return 13 if _roomy(cells) else 6


def _requests(cells: int) -> int:
    return 10 if _roomy(cells) else 5


def _figures(cells: int) -> int:
    return 28 + _slots(cells) + _requests(cells)


def _pad(text: str, cells: int) -> str:
    return text + " " * max(0, cells - width(text))


class RoundsBrief(Widget):
    """The newest rounds in two lines each, for the side of the Tune screen."""

    lines: reactive[tuple[RoundSummary, ...]] = reactive(())

    def render(self) -> Content:
        """As many as fit."""
        cells = self.size.width or 40
        if not self.lines:
            return Content.assemble(("No rounds yet.", "$foreground 60%"))
        rows: list[Content] = []
        for summary in self.lines[: max(1, (self.size.height or 40) // 3)]:
            sign, style = ("!", "bold $error") if summary.damaged else _STATE_SIGNS[summary.state]
            rows.append(
                Content.assemble(
                    (f"{sign} ", style),
                    (f"{summary.name}{' simulated' if summary.simulated else ''}  ", "bold"),
                    clip(_changed_words(summary), cells - 20),
                )
            )
            if summary.damaged:
                rows.append(Content.assemble((clip(f"  {_damage(summary)}", cells), style)))
            elif summary.state in _ENDED_EARLY:
                rows.append(Content.assemble(("  " + clip(failure_of(summary), cells - 2), style)))
            else:
                pools = f"{tokens(summary.kv_tokens)} tok · {tokens(summary.mamba_slots)} slots"
                ready = f" · up in {format_seconds(summary.ready_seconds)}" if summary.ready_seconds else ""
                rows.append(Content.assemble((clip(f"  {pools}{ready} · {_verdict(summary) or 'verified'}", cells),
                                              "$foreground 70%")))  # fmt: skip
            rows.append(Content(""))
        return Content("\n").join(rows)
