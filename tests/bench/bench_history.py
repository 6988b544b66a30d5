"""How long ten thousand rounds take to open, list, search and add to: ``python tests/bench/bench_history.py``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "rounds"))
from test_history import draft, finished

from tuner.paths import Home
from tuner.rounds.history import History
from tuner.rounds.search import Search

ROUNDS = 10_000


def best_of(times: int, work: Callable[[], object]) -> float:
    """The shortest of some runs, in milliseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home.at(Path(folder))
        path = home.database
        with History(path) as history:
            for number in range(ROUNDS):
                fraction = 0.5 + number % 40 / 100
                opened = history.open_round(draft(f"round {number} 备注", mem_fraction_static=fraction))
                history.save(finished(msgspec.structs.replace(opened, log_path="x" * 200, reason="why " * 500)))
        print(f"{ROUNDS:,} rounds, {path.stat().st_size / 2**20:.0f} MiB")

        def first_page() -> None:
            with History(path) as history:
                history.summaries(limit=50)

        with History(path) as history:
            needle = Search(words=(f"round {ROUNDS // 2} ",))
            flag = Search(flags=(("mem_fraction_static", 0.73),))
            for name, work in (
                ("open and list the first page", first_page),
                ("the last page", lambda: history.summaries(limit=50, offset=ROUNDS - 50)),
                ("a word that one round has", lambda: history.summaries(search=needle)),
                ("the value of a flag", lambda: history.summaries(search=flag)),
                ("all lines", lambda: history.summaries(limit=-1)),
                ("the last good round", history.last_good),
                ("one more round", lambda: history.save(finished(history.open_round(draft())))),
            ):
                print(f"{name:<30}{best_of(5, work):>9.1f} ms")
        command = [sys.executable, "-m", "tuner", "rounds"]
        environment = {"TUNER_HOME": folder, "PATH": "/usr/bin:/bin"}
        ran = best_of(3, lambda: subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL))
        print(f"{'tuner rounds, whole command':<30}{ran:>9.1f} ms")


if __name__ == "__main__":
    main()
