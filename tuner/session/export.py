"""A round as a file to keep, to run again or to share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuner.metrics.model import Readings
from tuner.recipe import Recipe, dumps_settings, dumps_toml, to_docker, to_shell, to_unit, to_yaml
from tuner.redact import redact
from tuner.rounds.chart import memory_chart, samples_chart
from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import Round
from tuner.units import format_gib, format_tokens

#: Those that hold a recipe, and that a recipe can be written as.
RECIPE_FORMATS = ("toml", "settings", "yaml", "sh", "systemd", "docker")
FORMATS = (*RECIPE_FORMATS, "md", "json")
_SCRIPTS = ("sh", "docker")

_SIMULATED = "SIMULATED: this round ran on the stand-in server, not on a real SGLang. It proves nothing."
_CHART_CELLS = 72


def export(round_: Round, fmt: str, samples: Sequence[Readings] = ()) -> str:
    """``round_`` in one of ``FORMATS``; every file says which round it was and what came of it.

    ``samples`` are readings taken during the round, for the charts of a report. Raises ValueError for another format.
    """
    if fmt == "md":
        return report(round_, samples)
    if fmt == "json":
        text = msgspec.json.format(msgspec.json.encode(redact(msgspec.to_builtins(round_))), indent=1)
        return text.decode() + "\n"
    return export_recipe(_for_version(round_, fmt), fmt, headline(round_))


def export_recipe(recipe: Recipe, fmt: str, comments: Sequence[str] = ()) -> str:
    """A recipe in one of ``RECIPE_FORMATS``. Raises ValueError for another format."""
    if fmt == "toml":
        return dumps_toml(recipe, comments)
    if fmt == "settings":
        return dumps_settings(recipe, comments)
    if fmt == "sh":
        return to_shell(recipe, comments)
    if fmt == "yaml":
        return to_yaml(recipe, comments)
    if fmt == "systemd":
        return to_unit(recipe, comments)
    if fmt == "docker":
        return to_docker(recipe, comments)
    raise ValueError(f"There is no export format {fmt!r}: take one of {', '.join(FORMATS)}.")


def write_file(target: Path, text: str, fmt: str) -> None:
    """Writes a whole file or nothing; a script can be run as it is. Raises OSError."""
    part = target.with_name(target.name + ".part")
    part.write_bytes(text.encode())
    if fmt in _SCRIPTS:
        # As far as the operator's own umask lets others read it.
        part.chmod(part.stat().st_mode | (part.stat().st_mode & 0o444) >> 2)
    part.replace(target)


def report(round_: Round, samples: Sequence[Readings] = ()) -> str:
    """A round as Markdown to share: what was asked and what came, with charts as text, without secrets."""
    from tuner.rounds.report import round_markdown  # a megabyte that an app which writes no report does not hold

    parts = [f"> {_SIMULATED}", ""] if round_.simulated else []
    parts.append(round_markdown(round_).rstrip())
    for title, lines in (
        ("Memory of the card", memory_chart(round_, _CHART_CELLS)),
        ("While it was watched", samples_chart(samples, _CHART_CELLS - 20)),
    ):
        if lines:
            parts += ["", f"### {title}", "", "```text", *lines, "```"]
    return "\n".join(parts) + "\n"


def _for_version(round_: Round, fmt: str) -> Recipe:
    """What is written for one version of SGLang names it: keys, flags and images differ from one to the next."""
    recipe = round_.recipe
    if fmt not in ("yaml", "docker") or recipe.simulated or recipe.tuner.sglang_version or not round_.sglang_version:
        return recipe
    return msgspec.structs.replace(
        recipe, tuner=msgspec.structs.replace(recipe.tuner, sglang_version=round_.sglang_version)
    )


def headline(round_: Round) -> list[str]:
    """What the head of an exported file says of its round."""
    lines = [f"Round {round_.name}: {round_.state}."]
    if round_.simulated:
        lines.insert(0, _SIMULATED)
    boot = round_.boot
    if boot is not None and boot.kv_tokens is not None:
        slots = f", {boot.mamba_slots} state slots" if boot.mamba_slots is not None else ""
        free = free_at_ready_gib(round_)
        told = f", {format_gib(free)} free at ready" if free is not None else ""
        lines.append(f"{format_tokens(boot.kv_tokens)} KV tokens{slots}, {boot.max_running_requests} requests{told}.")
    lines += [f"Check {result.name}: {result.verdict} ({result.reason})" for result in round_.checks]
    if round_.sglang_version:
        lines.append(f"SGLang {round_.sglang_version}" + (f", {round_.gpu_name}" if round_.gpu_name else "") + ".")
    if round_.note:
        lines.append(f"Note: {round_.note}")
    if round_.tags:
        lines.append(f"Tags: {', '.join(round_.tags)}")
    return lines
