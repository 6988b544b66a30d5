"""``tuner watch``: a line a second, for a log, a pipe or a screen reader."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

import click
import msgspec

from tuner.cli.look import Source, bound, key_option, opened, url_option
from tuner.cli.output import DONE, command, json_option, say
from tuner.metrics.model import Readings
from tuner.metrics.words import percent, spread_words
from tuner.redact import redact
from tuner.session.watching import Look
from tuner.units import format_tokens


@click.command("watch")
@url_option
@key_option
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="S", help="Seconds a line."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N lines; otherwise Ctrl+C does.")
@json_option
@command
def watch_command(url: str | None, key_env: str | None, every: float, count: int | None, as_json: bool) -> int:
    """Print one line a second about the running server: with --json one object a line."""
    with opened(url, key_env) as source, _until_ctrl_c() as wait:
        follow(source, _json_line if as_json else line, every=every, count=count, wait=wait)
    return DONE


@contextmanager
def _until_ctrl_c() -> Iterator[Callable[[float], bool]]:
    """A wait of some seconds that says whether Ctrl+C came, then or before: the way to end, so no word about it.

    An exception in the middle of a look can be lost: Python drops those that arise while it cleans up an object.
    """
    heard, say_it = os.pipe()
    os.set_blocking(say_it, False)

    def hear(*_: object) -> None:
        with suppress(BlockingIOError):  # said often enough
            os.write(say_it, b".")

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield lambda seconds: bool(select.select([heard], [], [], max(0.0, seconds))[0])
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(heard)
        os.close(say_it)


def follow(
    source: Source,
    write: Callable[[Look], str],
    *,
    every: float,
    count: int | None,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Writes a line every ``every`` seconds, ``count`` of them, or until ``wait`` says that it is enough.

    A look that takes long puts off no later one.
    """
    due = clock()
    number = 0
    while True:
        say(write(source.look(keep=False)))
        number += 1
        if count is not None and number >= count:
            return
        due = max(due + every, clock())
        if wait(due - clock()):
            return


def line(look: Look) -> str:
    """One look on one line of plain words."""
    at = datetime.fromtimestamp(look.at).strftime("%H:%M:%S")
    if look.running is None:
        return f"{at} no server of the tuner runs"
    handle, readings = look.running.handle, look.readings
    name = look.url or handle.round_name or f"port {handle.port}"
    parts = [f"{at} {name}{' SIMULATED' if handle.simulated else ''}"]
    binds = bound(look)
    if readings is None or not look.alive:
        parts.append(readings.notice if readings is not None else "not looked at yet")
        return ", ".join(parts)
    parts += [part for part in _numbers(readings) if part]
    if binds is not None:
        parts.append(binds.words.rstrip("."))
    if readings.notice:
        parts.append(readings.notice.rstrip("."))
    return ", ".join(parts)


def _numbers(r: Readings) -> list[str]:
    kv = ""
    if r.kv_used_tokens is not None and r.kv_total_tokens:
        of = f"{format_tokens(r.kv_used_tokens)} of {format_tokens(r.kv_total_tokens)}"
        kv = f"KV {of} {percent(r.kv_used_tokens, r.kv_total_tokens)}"
    slots = f"slots {r.slots_used} of {r.slots_total}" if r.slots_total and r.slots_used is not None else ""
    cached = f" and {r.slots_evictable} cached" if slots and r.slots_evictable else ""
    stale = " last batch" if "slots_used" in r.stale else ""
    limit = f" of {r.max_running_requests}" if r.max_running_requests is not None else ""
    running = f"{r.running}{limit} running, {r.queued} waiting" if r.running is not None else ""
    decode = f"decode {r.decode_tokens_per_s:,.0f}/s" if r.decode_tokens_per_s is not None else ""
    prefill = f"prefill {r.prefill_tokens_per_s:,.0f}/s" if r.prefill_tokens_per_s is not None else ""
    ttft = f"TTFT {spread_words(r.ttft_s)}" if r.ttft_s else ""
    itl = f"ITL {spread_words(r.itl_s)}" if r.itl_s else ""
    hits = f"hits {100 * r.prefix_hit_ratio:.0f} %" if r.prefix_hit_ratio is not None else ""
    accepted = f"accept {r.acceptance_length:.2f}" if r.acceptance_length is not None else ""
    stalled = "stalled" if r.stalled else ""
    return [kv, f"{slots}{cached}{stale}", running, decode, prefill, ttft, itl, hits, accepted, stalled]


def _json_line(look: Look) -> str:
    """The same as one JSON object without line breaks, secrets out."""
    running = look.running
    told = {
        "at": look.at,
        "round": running.handle.round_name if running else None,
        "url": (look.url or running.handle.url) if running else None,
        "simulated": running.handle.simulated if running else None,
        "alive": look.alive,
        "readings": look.readings,
        "binds": bound(look),
        "gpus": look.gpus,
    }
    return msgspec.json.encode(redact(msgspec.to_builtins(told))).decode("utf-8", "replace")
