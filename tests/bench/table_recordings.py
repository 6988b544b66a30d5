"""Prints the planner against every recording: ``python tests/bench/table_recordings.py``.

Pools from the printed numbers, rounds that the tuner ran, pools calibrated on each 27B round, the sum of terms against
the card's own reading, weights from the shape alone, the worked examples of the reference, and the public reports.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "planner"))

import pool_checks
import real_rounds
import recordings
import worked_examples

if __name__ == "__main__":
    print(recordings.uncalibrated_table())
    print()
    print(real_rounds.table())
    print()
    print(recordings.calibrated_table())
    print()
    print(recordings.terms_table())
    print()
    print(recordings.weights_table())
    print()
    print(worked_examples.table())
    print()
    print(pool_checks.table())
