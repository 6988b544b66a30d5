"""Writes rounds for ever and says after each step what is kept: killed in the middle by the test of the history.

For each line of standard input (path of the history, a tab, a number) a process of its own writes, until it is killed.
It says its process id first; its end is told as "end". Forked: to start Python a thousand times takes long.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec

from tuner.metrics.model import Readings
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.serverlog.model import BootFacts


def main(path: str, seed: str) -> None:
    history = History(path)
    draft = Round(
        number=0,
        started_at=1.0,
        state=RoundState.STARTING,
        recipe=Recipe(flags={"model_path": "/models/m", "mem_fraction_static": 0.86}),
    )
    while True:
        opened = history.open_round(draft)
        say(opened)
        checking = history.save(msgspec.structs.replace(opened, state=RoundState.CHECKING, reason="no room " * 2_500))
        say(checking)
        history.add_samples(opened.number, [Readings(at=float(i)) for i in range(25)])
        say(checking, samples=25)
        history.set_tags(opened.number, [f"kill-{seed}"])
        history.set_note(opened.number, f"备注 {seed}")
        say(checking, samples=25, note=f"备注 {seed}")
        verified = history.save(
            msgspec.structs.replace(checking, state=RoundState.VERIFIED, boot=BootFacts(kv_tokens=262_294))
        )
        say(verified, samples=25, note=f"备注 {seed}")


def say(round_: Round, samples: int = 0, note: str = "") -> None:
    promise = {"number": round_.number, "state": round_.state, "samples": samples, "note": note}
    sys.stdout.write(json.dumps(promise) + "\n")
    sys.stdout.flush()


def nursery() -> None:
    for line in sys.stdin:
        path, _, seed = line.rstrip("\n").rpartition("\t")
        pid = os.fork()
        if pid == 0:
            sys.stdout.write(f"{os.getpid()}\n")
            sys.stdout.flush()
            main(path, seed)
        os.waitpid(pid, 0)
        sys.stdout.write("end\n")
        sys.stdout.flush()


if __name__ == "__main__":
    nursery()
