"""Prints the planner against every recording: ``python tests/bench/table_recordings.py``.

Pools from the printed numbers, pools calibrated on each 27B round, the sum of terms against the card's own reading,
and the public reports.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "planner"))

import pool_checks
import recordings

if __name__ == "__main__":
    print(recordings.uncalibrated_table())
    print()
    print(recordings.calibrated_table())
    print()
    print(recordings.terms_table())
    print()
    print(pool_checks.table())
