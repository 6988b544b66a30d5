"""Which parsers fit the output of a model class, for a log and for a plan."""

from __future__ import annotations

from collections.abc import Callable

from tuner.doctor.case import finding
from tuner.findings import Finding, FindingId, Severity

#: By the beginning of the class's name: tool calls, reasoning (reports of 0.5.12 to 0.5.23).
_PARSERS = {
    "Qwen3_5": ("qwen3_coder", "qwen3"),
    "Qwen4Exp": ("qwen3_coder", "qwen3"),
    "BailingMoeV3": ("ling3", "ling3"),
    "Glm5Next": ("glm47", "glm45"),
}
_NAMES = ("tool_call_parser", "reasoning_parser")


def parsers_unfit(model_class: str, chosen: Callable[[str], str | None]) -> Finding | None:
    """Parsers of another family, or one of the two alone: tool calls and thinking land in the wrong field.

    ``chosen`` gives the value of a flag by its name.
    """
    wanted = next((parsers for prefix, parsers in _PARSERS.items() if model_class.startswith(prefix)), None)
    if wanted is None:
        return None
    told = {name: chosen(name) for name in _NAMES}
    fitting = dict(zip(_NAMES, wanted, strict=True))
    wrong = {name: fit for name, fit in fitting.items() if told[name] not in (None, "auto", fit)}
    missing = {name: fit for name, fit in fitting.items() if told[name] is None}
    if not wrong and len(missing) != 1:
        return None
    return finding(
        FindingId.PARSER_MISMATCH,
        Severity.WARNING if wrong else Severity.NOTE,
        "The parsers do not fit the model: tool calls come as text."
        if wrong
        else "Only one of the two parsers is set.",
        evidence=(f"model class: {model_class}", *(f"{name}={value or 'not set'}" for name, value in told.items())),
        remedy=f"Use tool_call_parser {wanted[0]} with reasoning_parser {wanted[1]}, and check one tool call.",
        flags=wrong | missing,
    )
