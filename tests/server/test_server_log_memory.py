"""A large log costs no memory: the small version of ``tests/bench/bench_log.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from bench_log import measured, write_log

MIB = 24


@pytest.mark.parametrize("long_line", [False, True])
def test_a_log_is_tailed_without_growing_memory(tmp_path: Path, long_line: bool) -> None:
    small, large = tmp_path / "small.log", tmp_path / "large.log"
    write_log(small, 1, long_line=False)
    write_log(large, 2 if long_line else MIB, long_line)
    if long_line:
        with large.open("a", encoding="utf-8") as file:
            for _ in range(MIB):
                file.write("x" * (1 << 20))
    base, _ = measured("tail", small)
    peak, _ = measured("tail", large)
    assert peak - base < MIB / 3
