"""Auto in random worlds whose truth it is not told. The whole campaign: ``tests/bench/auto_worlds.py``."""

from __future__ import annotations

import pytest
from hidden_worlds import SPECULATION, Auto, begin, meets, reachable, world_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.planner.model import Sourced
from tuner.serverlog.reader import read_boot
from tuner.session.auto.model import Ended


@given(st.integers(10_000, 10_000_000))
@settings(max_examples=12, deadline=None)
def test_auto_meets_what_can_be_met_and_says_what_cannot(seed: int) -> None:
    world = world_of(seed)
    stop, tries = Auto(world).run()
    can = reachable(world) is not None
    assert stop.ended is (Ended.MET if can else Ended.IMPOSSIBLE), stop.reason
    assert len(tries) <= world.goal.max_rounds
    if stop.ended is Ended.MET:
        last = tries[-1]
        assert last.proof is not None and last.proof.together == world.goal.need.agents
        assert meets(world, last.flags)
    else:
        assert stop.missing
    kept = {name: value for name, value in world.recipe.flags.items() if name.startswith("speculative_")}
    assert all(tried.flags.get(name) == value for tried in tries for name, value in kept.items())


def test_worlds_differ_from_what_the_planner_thinks_and_starts_die_in_some() -> None:
    died = [seed for seed in range(20) if any(not t.verified for t in Auto(world_of(seed)).run()[1])]
    assert died
    world = world_of(died[0])
    thought = Auto(world).gather(())
    _, log = begin(world, world.recipe.flags)
    facts = read_boot(log)
    assert isinstance(thought.free_after, Sourced) and facts.free_after_gib is not None
    assert abs(thought.free_after.gib - facts.free_after_gib) > 0.05


@pytest.mark.parametrize("speculates", [True, False])
def test_both_kinds_of_worlds_are_tried(speculates: bool) -> None:
    worlds = [world_of(seed).recipe.flags for seed in range(30)]
    assert any((SPECULATION.keys() <= flags.keys()) is speculates for flags in worlds)
