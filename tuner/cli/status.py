"""``tuner status``: what runs now and how it does."""

from __future__ import annotations

import time

import click

from tuner.cli.look import bound, key_option, opened, url_option
from tuner.cli.output import DONE, FAILED, command, json_option, print_json, say
from tuner.metrics.words import gpu_words, rows
from tuner.session.watching import Look
from tuner.units import format_gib

#: Processes of a card that are listed, largest first.
_MOST_PROCESSES = 5
#: Seconds between the two looks of a status.
_APART_S = 1.0


@click.command("status")
@url_option
@key_option
@json_option
@command
def status_command(url: str | None, key_env: str | None, as_json: bool) -> int:
    """Say what runs now and how it does. Exit status 1 when no server of the tuner runs, or none answers at URL."""
    with opened(url, key_env) as source:
        look = source.look()
        if look.alive:
            # Speeds and percentiles are differences: one look has none.
            time.sleep(_APART_S)
            look = source.look()
    if as_json:
        print_json(_json(look))
    else:
        _say(look)
    return DONE if look.alive else FAILED


def _json(look: Look) -> dict[str, object]:
    server = None
    if look.running is not None:
        handle, round_ = look.running.handle, look.running.round
        server = {
            "pid": handle.pid or None,
            "url": look.url or handle.url,
            "attached": bool(look.url),
            "simulated": handle.simulated,
            "round": handle.round_name,
            "state": round_.state if round_ else None,
            "log": handle.log_path or None,
            "started_at": None if look.url else handle.started_at,
            "sglang_version": round_.sglang_version if round_ else handle.recipe.tuner.sglang_version,
        }
    changed = [{"title": finding.title, "remedy": finding.remedy} for finding in look.changed]
    return {
        "running": server,
        "readings": look.readings,
        "binds": bound(look),
        "changed_by_server": changed,
        "gpus": look.gpus,
        "no_gpus": look.no_gpus or None,
        "at": look.at,
    }


def _say(look: Look) -> None:
    if look.running is None:
        say("No server of the tuner is running.")
    else:
        handle, round_ = look.running.handle, look.running.round
        mark = " SIMULATED, not a real SGLang" if handle.simulated else ""
        state = f", {round_.state}" if round_ else ""
        where = f"{look.url}, attached" if look.url else f"{handle.url}, pid {handle.pid}"
        say(f"{handle.round_name or 'server'}{state}: {where}{mark}")
    if look.readings is not None and look.alive:
        for name, words in rows(look.readings):
            say(f"  {name:<13}{words}")
        binds = bound(look)
        if binds is not None:
            say(f"  {binds.words}")
    if look.readings is not None and look.readings.notice:
        say(f"  {look.readings.notice}")
    for finding in look.changed:
        say(f"  {finding.title} {finding.remedy}")
    if look.no_gpus:
        say(f"  {'GPU':<13}{look.no_gpus}")
    for gpu in look.gpus:
        words = gpu_words(gpu)
        say(f"  {f'GPU {gpu.index}':<13}{' · '.join(part for part in (gpu.name, words) if part)}")
        for process in gpu.processes[:_MOST_PROCESSES]:
            memory = format_gib(process.memory_mib / 1024) if process.memory_mib is not None else "memory not told"
            say(f"  {'':<13}process {process.pid}{f' {process.name}' if process.name else ''}: {memory}")
