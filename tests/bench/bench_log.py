"""What a large log costs: ``python tests/bench/bench_log.py [--mib 1024]``.

Reads a log of that size, once of ordinary lines and once with a line of a tenth of it, as a waiting tuner tails it
and as a tuner reads it whole afterwards. Each reading is a process of its own; the peak of its memory must not grow
with the log: limit 64 MiB over the same reading of a log of 1 MiB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tuner.server.logfile import LogTail
from tuner.serverlog.reader import BootReader
from tuner.session.bootlog import read_log

MIB = 1 << 20
LIMIT_MIB = 64
STAMP = "[2026-11-29 15:52:22] "
BATCH = (
    STAMP + "Decode batch, #running-req: 3, #full token: 6110, full token usage: 0.02, mamba num: 9, "
    "mamba usage: 0.16, accept len: 1.77, accept rate: 0.77, cuda graph: True, "
    "gen throughput (token/s): 141.76, #queue-req: 0\n"
)


def write_log(path: Path, mib: int, long_line: bool) -> None:
    """A log of ``mib`` MiB of batch lines, with one line of a tenth of that in its middle."""
    block = (BATCH * (MIB // len(BATCH) + 1))[:MIB].rsplit("\n", 1)[0] + "\n"
    with path.open("w", encoding="utf-8") as file:
        for number in range(mib):
            file.write(block)
            if long_line and number == mib // 2:
                for _ in range(max(1, mib // 10)):
                    file.write("x" * MIB)
                file.write("\n")


def tail(path: Path) -> None:
    """As ``ReadyWait`` does: piece by piece, into a reader and its batch lines away."""
    log, reader = LogTail(path), BootReader()
    while text := log.read():
        reader.feed(text)
        reader.drain()
    reader.close()


def whole(path: Path) -> None:
    """As ``settle`` and ``tuner log`` do: the start and the end of it."""
    facts, _ = read_log(path)
    assert facts is not None


WAYS = {"tail": tail, "whole": whole}


def peak_mib() -> float:
    """Highest memory of this process so far, MiB (ru_maxrss is in KiB on Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(way: str, path: Path) -> tuple[float, float]:
    """Peak MiB and seconds of one reading in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--read", way, str(path)], check=True, capture_output=True, text=True
    )
    peak, seconds = done.stdout.split()
    return float(peak), float(seconds)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--read", nargs=2, metavar=("WAY", "PATH"))
    options = parser.parse_args()
    if options.read:
        way, path = options.read
        began = time.perf_counter()
        WAYS[way](Path(path))
        print(f"{peak_mib():.1f} {time.perf_counter() - began:.2f}")
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for long_line in (False, True):
            small, large = Path(folder) / "small.log", Path(folder) / "large.log"
            write_log(small, 1, long_line=False)
            write_log(large, options.mib, long_line)
            kind = f"with a line of {max(1, options.mib // 10)} MiB" if long_line else "of batch lines"
            for way in WAYS:
                base, _ = measured(way, small)
                peak, seconds = measured(way, large)
                worst = max(worst, peak - base)
                print(
                    f"{way:6} {options.mib:5} MiB {kind:24} peak {peak:6.1f} MiB (1 MiB log: {base:5.1f})  "
                    f"{seconds:6.1f} s  {options.mib / seconds:5.0f} MiB/s"
                )
            large.unlink()
    print(f"most over the small log: {worst:.1f} MiB, limit {LIMIT_MIB}  {'ok' if worst < LIMIT_MIB else 'TOO MUCH'}")
    return int(worst >= LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main())
