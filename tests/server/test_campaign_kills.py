"""A tuner killed at a random moment of a round: its server is adopted or absent, and the history tells how far."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from campaign import MARK, chunks, gone, marked

from tuner.paths import Home
from tuner.rounds.model import Round, RoundState
from tuner.server.family import family
from tuner.server.ports import port_free
from tuner.session.runners import LOST, OPEN_STATES
from tuner.session.session import Session
from tuner.session.watching import Running

SIGNALS = (signal.SIGKILL, signal.SIGHUP, signal.SIGTERM)
FAULTS = (None, None, None, "hang:loading", "hang:sizing", "ignore-sigterm", "orphan-child:session", "flood-log:5000")


def tuner(home: Home, port: int, chance: random.Random, fault: str | None) -> subprocess.Popen[bytes]:
    """A whole ``tuner run`` at its own terminal."""
    switches = {"speed": 0, **({"fault": fault} if fault else {})}
    words = ["run", "--sim", "--force", "--set", f"port={port}", "--set", f"tuner.simulator={json.dumps(switches)}"]
    words += ["--stop-after"] if chance.random() < 0.3 else []
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        env={**os.environ, "TUNER_HOME": str(home.state_root.parent), MARK: f"kill-{port}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", chunks(full=300, sample=5, of=75), ids=str)
def test_campaign_of_kills_leaves_an_adopted_server_or_none(seeds: range, home: Home, port: int) -> None:
    told: Counter[str] = Counter()
    began = time.monotonic()
    assert tuner(home, port, random.Random(0), fault=None).wait() == 0
    whole_s = time.monotonic() - began
    for seed in seeds:
        chance = random.Random(seed)
        how = chance.choice(SIGNALS)
        killed = False
        while not killed:
            running_before, rounds_before = _before(home, port)
            process = tuner(home, port, chance, chance.choice(FAULTS))
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 1.1 * whole_s))
            process.send_signal(how)
            killed = process.wait() == -how
        told[how.name] += 1
        session = Session(home, os.environ)
        session.settle()
        try:
            # A process still at the gate of its start, or one that had just been told to end, needs a moment.
            known = _known(session.running(port))
            strays = gone([p for p in marked(f"kill-{port}") if p.pid not in known], within_s=10)
            running = session.running(port)
            known = _known(running)
            assert [p.cmdline() for p in strays if p.pid not in known] == [], seed
            assert len(_servers(port)) <= 1, seed
            rounds = session.history.list(limit=3)
            _in_known_state(rounds, seed)
            opened = rounds[0].number > rounds_before
            told[
                f"{'server adopted' if running else 'no server'}, {_story(rounds[0]) if opened else 'no round yet'}"
            ] += 1
            if running is not None and running.handle.pid != running_before:
                assert running.round is not None, seed
                assert running.round.number == rounds[0].number > rounds_before, seed
            if opened and running is None:
                assert "verify runs them now" not in rounds[0].reason, seed
            if running is not None and chance.random() < 0.7:
                outcome = session.stop(publish=lambda _: None, port=port, drain=False)
                assert outcome is not None and outcome.stopped, (seed, outcome)
                assert gone(marked(f"kill-{port}"), within_s=5) == [], seed
                assert port_free("127.0.0.1", port), seed
        finally:
            session.close()
    for line, count in sorted(told.items()):
        print(f"{count:4}  {line}")


def _before(home: Home, port: int) -> tuple[int | None, int]:
    """The process of the running server, and how many rounds there are."""
    session = Session(home, os.environ)
    try:
        running = session.running(port)
        return (running.handle.pid if running else None), session.history.count()
    finally:
        session.close()


def _servers(port: int) -> list[psutil.Process]:
    """Main processes of servers; a child that has just been forked still has its parent's command line."""
    mains = []
    for process in marked(f"kill-{port}"):
        with suppress(psutil.Error):
            parent = process.parent()
            if "tuner.sim" in process.cmdline() and (parent is None or "tuner.sim" not in parent.cmdline()):
                mains.append(process)
    return mains


def _known(running: Running | None) -> set[int]:
    """What the tuner would stop: the server, and orphans of it."""
    return {process.pid for process in family(running.handle)} if running is not None else set()


def _in_known_state(rounds: list[Round], seed: int) -> None:
    for round_ in rounds:
        assert round_.state not in OPEN_STATES, (seed, round_.name, round_.state)
        assert round_.phase or round_.state is RoundState.VERIFIED, (seed, round_.name, round_.state)


def _story(round_: Round) -> str:
    how = "closed by itself" if not round_.reason.startswith(LOST) else "settled"
    return f"round {how}: {round_.state} {round_.phase}".strip()
