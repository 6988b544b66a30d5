"""``tuner status``: what runs now and how it does."""

from __future__ import annotations

import click

from tuner.cli.output import DONE, FAILED, command, json_option, print_json, say
from tuner.paths import Home
from tuner.session.session import Session
from tuner.session.watching import Look
from tuner.units import format_gib, format_tokens


@click.command("status")
@json_option
@command
def status_command(as_json: bool) -> int:
    """Say what runs now and how it does. Exit status 1 when no server of the tuner runs."""
    session = Session(Home.find())
    try:
        look = session.look()
    finally:
        session.close()
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
            "pid": handle.pid,
            "url": handle.url,
            "simulated": handle.simulated,
            "round": handle.round_name,
            "state": round_.state if round_ else None,
            "log": handle.log_path,
            "started_at": handle.started_at,
        }
    return {"running": server, "readings": look.readings, "gpus": look.gpus, "at": look.at}


def _say(look: Look) -> None:
    if look.running is None:
        say("No server of the tuner is running.")
    else:
        handle, round_ = look.running.handle, look.running.round
        mark = " SIMULATED, not a real SGLang" if handle.simulated else ""
        state = f", {round_.state}" if round_ else ""
        say(f"{handle.round_name or 'server'}{state}: {handle.url}, pid {handle.pid}{mark}")
    readings = look.readings
    if readings is not None:
        if readings.kv_used_tokens is not None and readings.kv_total_tokens:
            share = 100 * readings.kv_used_tokens / readings.kv_total_tokens
            of = f"{format_tokens(readings.kv_used_tokens)} of {format_tokens(readings.kv_total_tokens)}"
            say(f"  KV use       {of} tokens ({share:.1f} %)")
        if readings.slots_total:
            say(f"  State slots  {readings.slots_used} of {readings.slots_total}")
        if readings.running is not None:
            say(f"  Requests     {readings.running} running, {readings.queued} queued")
        if readings.notice:
            say(f"  {readings.notice}")
    for gpu in look.gpus:
        if gpu.used_mib is not None and gpu.total_mib is not None:
            used, total = format_gib(gpu.used_mib / 1024), format_gib(gpu.total_mib / 1024)
            say(f"  GPU {gpu.index}        {gpu.name or ''} {used} of {total}")
