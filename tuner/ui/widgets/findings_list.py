"""Findings as an operator reads them: what, why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from tuner.findings import Finding, Severity
from tuner.text import clip, plain

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


def findings_text(findings: Sequence[Finding], *, evidence: bool = False, remedy: bool = True) -> Content:
    """One paragraph a finding."""
    lines: list[Content] = []
    for finding in worst_first(findings):
        sign, style = _SIGNS[finding.severity]
        lines.append(
            Content.assemble(
                (f"{sign} ", style),
                (plain(finding.title), style if finding.severity is Severity.FATAL else ""),
                (f" {plain(finding.remedy)}" if remedy and finding.remedy else "", "$foreground 70%"),
            )
        )
        if evidence:
            lines += [Content.assemble((f"    {plain(line)}", "$foreground 50%")) for line in finding.evidence[:6]]
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
        for remedy in (True, False):
            words = findings_text(self.findings, remedy=remedy)
            if words.get_height({}, wide) <= high:
                return words
        return _clipped(worst_first(self.findings), wide, high)


def _clipped(findings: Sequence[Finding], wide: int, high: int) -> Content:
    """One line a finding, the last one for how to see the rest."""
    shown = findings if len(findings) <= high else findings[: high - 1]
    lines = [
        Content.assemble((f"{_SIGNS[f.severity][0]} ", _SIGNS[f.severity][1]), clip(plain(f.title), wide - 2))
        for f in shown
    ]
    if len(shown) < len(findings):
        lines.append(
            Content.assemble((f"  i shows {len(findings) - len(shown)} more, and what to do", "$foreground 60%"))
        )
    return Content("\n").join(lines)
