"""A round as a file to keep, to run again or to share."""

from __future__ import annotations

import msgspec

from tuner.recipe import dumps_settings, dumps_toml, to_shell
from tuner.redact import redact
from tuner.rounds.model import Round
from tuner.units import format_gib, format_tokens

FORMATS = ("toml", "settings", "sh", "json")


def export(round_: Round, fmt: str) -> str:
    """``round_`` in one of ``FORMATS``; the recipe's files say which round it was and what came of it.

    Raises ValueError for another format.
    """
    if fmt == "toml":
        return dumps_toml(round_.recipe, headline(round_))
    if fmt == "settings":
        return dumps_settings(round_.recipe)
    if fmt == "sh":
        return to_shell(round_.recipe, headline(round_))
    if fmt == "json":
        text = msgspec.json.format(msgspec.json.encode(redact(msgspec.to_builtins(round_))), indent=1)
        return text.decode() + "\n"
    raise ValueError(f"There is no export format {fmt!r}: take one of {', '.join(FORMATS)}.")


def headline(round_: Round) -> list[str]:
    """What the head of an exported file says of its round."""
    lines = [f"Round {round_.name}: {round_.state}."]
    if round_.simulated:
        lines.insert(0, "SIMULATED: this round ran on the stand-in server, not on a real SGLang. It proves nothing.")
    boot = round_.boot
    if boot is not None and boot.kv_tokens is not None:
        slots = f", {boot.mamba_slots} state slots" if boot.mamba_slots is not None else ""
        lines.append(
            f"{format_tokens(boot.kv_tokens)} KV tokens{slots}, "
            f"{boot.max_running_requests} requests at once, {format_gib(boot.available_gib or 0.0)} free at ready."
        )
    lines += [f"Check {result.name}: {result.verdict} ({result.reason})" for result in round_.checks]
    if round_.sglang_version:
        lines.append(f"SGLang {round_.sglang_version}" + (f", {round_.gpu_name}" if round_.gpu_name else "") + ".")
    if round_.note:
        lines.append(f"Note: {round_.note}")
    return lines
