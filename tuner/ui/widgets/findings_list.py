"""Findings as an operator reads them: what, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.findings import Finding, Severity
from tuner.text import clip, plain
from tuner.ui.widgets.set_in import set_in

_ORDER = (Severity.FATAL, Severity.WARNING, Severity.NOTE)
_SIGNS = {
    Severity.FATAL: ("✗", "bold $error"),
    Severity.WARNING: ("!", "bold $warning"),
    Severity.NOTE: ("i", "$primary"),
}


def sign_of(severity: Severity) -> tuple[str, str]:
    """The sign of a severity and its style."""
    return _SIGNS[severity]


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by severity."""
    return tuple(sorted(findings, key=lambda f: _ORDER.index(f.severity)))


def findings_text(
    findings: Sequence[Finding], cells: int, *, evidence: bool = False, remedies: int | None = None
) -> Content:
    """One paragraph of ``cells`` a finding, worst first; the first ``remedies`` say what to do, None: all."""
    lines: list[Content] = []
    for at, finding in enumerate(worst_first(findings)):
        remedy = plain(finding.remedy) if remedies is None or at < remedies else ""
        sign, style = _SIGNS[finding.severity]
        words = Content.assemble(
            (f"{sign} ", style),
            (plain(finding.title), style if finding.severity is Severity.FATAL else ""),
            (f" {remedy}" if remedy else "", "$foreground 70%"),
        )
        lines.append(set_in(words, cells, 2))
        if evidence:
            told = (Content.assemble((f"    {plain(line)}", "$foreground 60%")) for line in finding.evidence[:6])
            lines += [set_in(line, cells, 4) for line in told]
    return Content("\n").join(lines)


class FindingsList(Widget):
    """Findings, worst first, in as many words as there is room for; one sentence when there is no plan at all."""

    findings: reactive[tuple[Finding, ...]] = reactive(())
    problem: reactive[str] = reactive("")

    def render(self) -> Content:
        """Red only for what will fail."""
        wide, high = self.size.width, self.size.height
        if self.problem:
            return Content.assemble(("✗ ", "bold $error"), (plain(self.problem), "$error"))
        if not self.findings or not wide or not high:
            return Content("")
        return fitted(self.findings, wide, high)


def fitted(findings: Sequence[Finding], wide: int, high: int) -> Content:
    """Findings in ``wide`` × ``high`` cells: what will fail keeps its remedy, of the others as many as fit."""
    fatal = sum(f.severity is Severity.FATAL for f in findings)
    for remedies in range(len(findings), fatal - 1, -1):
        words = findings_text(findings, wide, remedies=remedies)
        if _lines(words) <= high:
            return words
    return _clipped(worst_first(findings), wide, high)


def _clipped(findings: Sequence[Finding], wide: int, high: int) -> Content:
    """What will fail whole where it can be, of the rest one line each, the last one for how to see more."""
    fatal = [f for f in findings if f.severity is Severity.FATAL]
    whole = next((n for n in range(len(fatal), 0, -1) if _height(fatal[:n], wide) <= high), 0)
    left = high - _height(fatal[:whole], wide) if whole else high
    rest = findings[whole:]
    shown = rest if len(rest) <= left else rest[: max(0, left - 1)]
    lines = [findings_text(fatal[:whole], wide)] if whole else []
    lines += [
        Content.assemble((f"{_SIGNS[f.severity][0]} ", _SIGNS[f.severity][1]), clip(plain(f.title), wide - 2))
        for f in shown
    ]
    if len(shown) < len(rest) and left:
        words = f"  i shows {len(rest) - len(shown)} more{'' if whole else ', and what to do'}"
        lines.append(Content.assemble((clip(words, wide), "$foreground 60%")))
    return Content("\n").join(lines)


def _height(findings: Sequence[Finding], wide: int) -> int:
    return _lines(findings_text(findings, wide))


def _lines(text: Content) -> int:
    return text.plain.count("\n") + 1
