"""From the article's first round to its need, on a real server, by the tuner's command line alone.

    python tests/real/story.py --python PATH --model DIR [--wheels DIR] [--card-gib 47.5] [--env NAME=VALUE ...]

Round 1 is the preset r01. Then ``tuner auto``: three inputs of 88,165 tokens in flight together, none retracted,
speculation on, 2 GiB free at ready. Then the same three requests by plain HTTP, beside the tuner's own proof. Prints a
table of every round, predicted against actual, for the README. Exit status 0 when the need was answered within
``--rounds`` rounds (the first included), the pools were as exact as promised, and the stop left nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from exactness import HEAD, inexact, row
from machine import (
    TOLERANCE_MIB,
    Tuner,
    in_flight,
    installed,
    missing_mib,
    options,
    recipe,
    smaller_card,
    table,
    vram_mib,
)

PRESET = "qwen3.8-27b-r01"
SPECULATION = ("speculative_algorithm=NEXTN", "speculative_num_steps=1", "speculative_eagle_topk=1",
               "speculative_num_draft_tokens=2")  # fmt: skip


def story(tuner: Tuner, start: list[str], need: list[str], asked: argparse.Namespace) -> dict[str, Any]:
    """Runs it; what every step answered."""
    found: dict[str, Any] = {"before": vram_mib(asked.gpu)}
    _, first = tuner("run", *start, "--note", "the article's first round")
    print(f"{first.get('name')}: {first.get('state')} {first.get('reason') or first.get('error') or ''}", flush=True)
    speculation = [word for pair in SPECULATION for word in ("--set", pair)]
    status, found["auto"] = tuner("auto", *start, *speculation, *need)
    print(f"auto ended with {status}: {found['auto'].get('reason') or found['auto'].get('error')}", flush=True)
    found["met"] = status == 0
    found["beside"] = in_flight(f"http://127.0.0.1:{asked.port}", asked.input, asked.agents)
    _, found["status"] = tuner("status")
    _, listed = tuner("rounds")
    names = sorted((r["name"] for r in listed), key=lambda name: int(name[1:]))
    found["rounds"] = [tuner("show", name)[1] for name in names]
    _, found["stop"] = tuner("stop")
    found["after"] = vram_mib(asked.gpu)
    return found


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--input", type=int, default=88_165)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--headroom", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that it may take, the first included")
    asked = parser.parse_args()
    need = ["--input", str(asked.input), "--agents", str(asked.agents), "--headroom", str(asked.headroom)]
    need += ["--max-rounds", str(asked.rounds - 1)]
    with (
        tempfile.TemporaryDirectory() as folder,
        installed(asked) as tuner,
        smaller_card(asked),
    ):
        start = recipe(tuner, asked, PRESET, Path(folder) / "r01.toml")
        found = story(tuner, start, need, asked)
    print(table(HEAD, [row(round_, found["after"]) for round_ in found["rounds"]]))
    beside = found["beside"]
    print(f"{asked.agents} requests by plain HTTP: at most {beside['together']} ran together; {beside['answers']}")
    wrong = inexact(found["rounds"])
    wrong += [] if found["met"] else ["the need was not met"]
    wrong += [f"a request was not answered: {a['error']}" for a in beside["answers"] if "error" in a]
    wrong += [f"a request was retracted {a['retractions']} times" for a in beside["answers"] if a.get("retractions")]
    wrong += [] if found["stop"].get("stopped") else [f"the stop: {found['stop']}"]
    missing = missing_mib(found["before"], found["after"])
    wrong += [f"{missing} MiB did not come back"] if missing > TOLERANCE_MIB else []
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(
        f"{len(found['rounds'])} rounds; "
        + ("all as promised" if not wrong else "NOT as promised: " + "; ".join(wrong))
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
