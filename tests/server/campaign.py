"""What the campaigns share: how many trials, and which processes came from one.

``TUNER_CAMPAIGN=full .venv/bin/pytest -n 2 tests/server -k campaign`` runs them in full: 200 races and 300 kills.
A number instead of ``full`` runs that many of each. With ``-n 0 -s`` they print what they met.
"""

from __future__ import annotations

import os

import psutil

#: In the environment of everything a trial starts.
MARK = "TUNER_TEST_CAMPAIGN"
ASKED = os.environ.get("TUNER_CAMPAIGN", "")


def chunks(full: int, sample: int, of: int) -> list[range]:
    """Seeds of the trials in chunks that may run side by side."""
    count = full if ASKED == "full" else int(ASKED or sample)
    return [range(first, min(first + of, count)) for first in range(0, count, of)]


def marked(value: str) -> list[psutil.Process]:
    """Living processes that carry the mark, whatever session or parent they have."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def gone(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that still live when the time is over."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
