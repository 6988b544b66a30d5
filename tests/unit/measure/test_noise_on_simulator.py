from __future__ import annotations

import os

import pytest
from virtual_rounds import virtual_round

from tuner.measure.model import Load, Stat
from tuner.measure.stats import by_repeat, stat
from tuner.rounds.model import ChangeVerdict
from tuner.rounds.noise import compare_measured

#: The default number of requests and repeats; 5 % of noise from request to request, 2 % from round to round.
LOAD = Load(input_tokens=512, output_tokens=12)
#: Pairs of rounds: the first of the seeds, or all of them (100, by hand).
TRIALS = int(os.environ.get("TUNER_TRIALS", "8"))
#: Of 100 pairs that are the same, this share is to be called so; of 100 that differ by a tenth, the lower one.
SHARE = {1.0: 0.95, 1.1: 0.90}


def measured(seed: int, slower: float = 1.0) -> dict[str, Stat]:
    samples = virtual_round(LOAD, seed, noise=0.05, round_noise=0.02, slower=slower)
    found = {field: stat(by_repeat(samples, field)) for field in ("ttft_s", "itl_s")}
    return {field: value for field, value in found.items() if value is not None}


@pytest.mark.parametrize(("slower", "wanted"), [(1.0, ChangeVerdict.WITHIN_NOISE), (1.1, ChangeVerdict.WORSE)])
def test_rounds_on_the_simulators_scheduler_are_told_apart_by_a_tenth_and_not_by_noise(
    slower: float, wanted: ChangeVerdict
) -> None:
    pairs = [(measured(3 * n + 1), measured(3 * n + 2, slower)) for n in range(TRIALS)]
    for field in ("ttft_s", "itl_s"):
        verdicts = [compare_measured(old[field], new[field], "p50") for old, new in pairs]
        right = verdicts.count(wanted)
        print(f"{field}, {slower} times as long: {right} of {TRIALS} {wanted}")
        assert right >= min(TRIALS * SHARE[slower], TRIALS - 1), (field, verdicts)
