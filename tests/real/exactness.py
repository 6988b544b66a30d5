"""A round as a line of a table, predicted against actual, and what was less exact than promised."""

from __future__ import annotations

from typing import Any

#: How far off KV tokens may be, percent: planned from the card alone, and once a boot log calibrates.
FIRST_PERCENT, LATER_PERCENT = 0.2, 0.05


def row(round_: dict[str, Any], vram: list[int]) -> list[object]:
    """One round, predicted against actual."""
    plan, accuracy = round_.get("plan") or {}, round_.get("accuracy") or {}
    checks = round_.get("checks") or []
    levels = round_.get("vram_mib") or {}

    def both(name: str) -> str:
        predicted, actual = accuracy.get(f"{name}_predicted"), accuracy.get(f"{name}_actual")
        return "–" if actual is None else f"{_amount(predicted)} / {_amount(actual)}"

    return [
        round_["name"],
        round_["state"],
        plan.get("basis", "–"),
        both("slots"),
        both("tokens"),
        f"{accuracy['tokens_percent']:+.3f} %" if accuracy.get("tokens_percent") is not None else "–",
        both("requests"),
        both("ready_free"),
        levels.get("peak", "–"),
        f"{round_['ready_seconds']:.0f} s" if round_.get("ready_seconds") else "–",
        f"{sum(check['verdict'] == 'pass' for check in checks)} of {len(checks)}",
        " ".join(map(str, vram)) or "–",
    ]


def _amount(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


HEAD = ("round", "state", "basis", "state slots", "KV tokens", "off", "requests", "GiB free at ready", "peak MiB",
        "ready", "checks", "MiB after")  # fmt: skip


def inexact(rounds: list[dict[str, Any]]) -> list[str]:
    """What was less exact than promised, one sentence each."""
    wrong = []
    for round_ in rounds:
        accuracy = round_.get("accuracy") or {}
        if accuracy.get("tokens_actual") is None:
            continue
        if accuracy["tokens_percent"] is None:
            wrong.append(f"{round_['name']}: no plan was made")
            continue
        if accuracy["slots_predicted"] != accuracy["slots_actual"]:
            wrong.append(f"{round_['name']}: {accuracy['slots_predicted']} slots, {accuracy['slots_actual']} came")
        limit = LATER_PERCENT if accuracy["calibrated_by"] else FIRST_PERCENT
        if abs(accuracy["tokens_percent"]) > limit:
            wrong.append(f"{round_['name']}: KV tokens {accuracy['tokens_percent']:+.3f} % off, limit {limit} %")
    return wrong
