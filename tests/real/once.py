"""One round on a real server, predicted against actual: any preset, any recipe, any number of GPUs.

    python tests/real/once.py PRESET --python PATH --model DIR [--set KEY=VALUE ...] [--rounds 1]

Prints the warnings of the plan and a line for each round, as story.py does. With ``--rounds 2`` the second is planned
from the log of the first. Exit status 0 when every round served, the pools were as exact as promised, and the stop left
nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from exactness import HEAD, inexact, row
from machine import TOLERANCE_MIB, installed, missing_mib, options, recipe, smaller_card, table, vram_mib


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("preset", help="a shipped preset, or a recipe file")
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    rounds, wrong = [], []
    with tempfile.TemporaryDirectory() as folder, installed(asked) as tuner, smaller_card(asked):
        before = vram_mib(asked.gpu)
        start = recipe(tuner, asked, asked.preset, Path(folder) / "recipe.toml")
        for _ in range(asked.rounds):
            _, planned = tuner("plan", *start)
            for finding in planned.get("findings") or []:
                print(f"planned: {finding['title']} ({'; '.join(finding['evidence'])})")
            _, ran = tuner("run", *start)
            if ran.get("ready_seconds") is None:
                wrong.append(f"{ran.get('name')} did not serve: {ran.get('reason') or ran.get('error')}")
                print(json.dumps(ran, indent=1), flush=True)
                break
            rounds.append(tuner("show", ran["name"])[1])
        _, stopped = tuner("stop")
        after = vram_mib(asked.gpu)
    print(table(HEAD, [row(round_, after) for round_ in rounds]))
    wrong += inexact(rounds)
    wrong += [] if stopped.get("stopped") or not rounds else [f"the stop: {stopped}"]
    missing = missing_mib(before, after)
    wrong += [f"{missing} MiB did not come back"] if missing > TOLERANCE_MIB else []
    if asked.out:
        asked.out.write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    print("all as promised" if not wrong else "NOT as promised: " + "; ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
