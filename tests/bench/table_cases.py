"""Prints what the doctor finds in every recording and every public case: ``python tests/bench/table_cases.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "doctor"))

import case_table

if __name__ == "__main__":
    print(case_table.table())
