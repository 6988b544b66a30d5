"""``auto`` in random worlds whose truth it is not told: ``python tests/bench/auto_worlds.py [WORLDS]``.

Runs seeds from 0 on until there are WORLDS (100) worlds in which the need can be reached and as many in which it
cannot, by the truth. Wanted: met in at most 3 rounds in 95 of 100, and told rightly in 100 of 100. Two minutes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "session"))

from hidden_worlds import Auto, reachable, world_of

from tuner.session.auto.model import Ended

ROUNDS = 3


def main(wanted: int) -> int:
    """Prints every world that went wrong, and the sums. Returns the exit status."""
    began = time.perf_counter()
    rounds: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    right: Counter[bool] = Counter()
    seen: Counter[bool] = Counter()
    died = seed = 0
    while min(seen[True], seen[False]) < wanted:
        world = world_of(seed)
        seed += 1
        can = reachable(world) is not None
        if seen[can] >= wanted:
            continue
        seen[can] += 1
        stop, tries = Auto(world).run()
        met = stop.ended is Ended.MET
        good = met and len(tries) <= ROUNDS if can else stop.ended is Ended.IMPOSSIBLE
        right[can] += good
        died += any(not tried.verified for tried in tries)
        rounds[can][f"{stop.ended}, {len(tries)} rounds"] += 1
        if not good:
            print(f"seed {world.seed}: {'can' if can else 'cannot'} be reached, {stop.ended}, {len(tries)} rounds")
            print(f"  {stop.reason}")
    for can, name in ((True, "can be reached"), (False, "cannot be reached")):
        print(f"{name}: right in {right[can]} of {seen[can]}")
        for how, count in sorted(rounds[can].items()):
            print(f"  {count:4}  {how}")
    print(f"worlds with a start that died: {died}; seeds 0 to {seed - 1}; {time.perf_counter() - began:.0f} s")
    return 0 if right[True] >= 0.95 * seen[True] and right[False] == seen[False] else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
