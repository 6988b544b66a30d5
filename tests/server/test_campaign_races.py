"""Starts at the same moment, by tuners and by the exported script: exactly one server comes of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from campaign import MARK, chunks, marked

from tuner.paths import Home
from tuner.recipe import to_shell
from tuner.recipe.model import SIMULATOR, Recipe
from tuner.server import presence
from tuner.server.supervisor import Supervisor

TUNERS = 4
RACER = """
import os, sys
from pathlib import Path
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.model import LaunchSpec, StartRefused
from tuner.server.supervisor import Supervisor
from tuner.probes.gpu import SimCardProbe
home, port, fake = Home.at(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
supervisor = Supervisor(home, SimCardProbe(home.card(port)))
print("at the line", flush=True)
for _ in sys.stdin:
    spec = LaunchSpec(argv=(fake, "--port", str(port)), environment=dict(os.environ), host="127.0.0.1", port=port,
        simulated=True, recipe=Recipe(python="simulator", flags={"port": port}))
    try:
        print("won", supervisor.start(spec).pid, flush=True)
    except StartRefused as refusal:
        first = refusal.findings[0]
        print("lost", first.id.value, first.title, *first.evidence, flush=True)
"""


class Script:
    """The exported start script as a contestant."""

    def __init__(self, folder: Path, port: int, fake: Path) -> None:
        self._path = folder / "start.sh"
        self._path.write_text(to_shell(Recipe(python=SIMULATOR, flags={"model_path": "m", "port": port})), "utf-8")
        self._fake = fake
        self.process: subprocess.Popen[str] | None = None

    def go(self) -> None:
        self.process = subprocess.Popen(
            ["bash", str(self._path)],
            env={**os.environ, "PYTHON": str(self._fake)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def result(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if said.startswith("Log: "):
            return f"won {self.process.pid}"
        self.process.wait()
        return f"lost script {said}"

    def end(self) -> None:
        if self.process is not None:
            assert self.process.stdout is not None
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A server that loads for ever: under the same process id, and with no port."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def tuners(home: Home, port: int, fake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    monkeypatch.setenv(MARK, f"race-{port}")
    monkeypatch.setenv("TUNER_HOME", str(home.state_root.parent))
    arguments = [sys.executable, "-c", RACER, str(home.state_root.parent), str(port), str(fake)]
    racers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(TUNERS)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "at the line\n"
    yield racers
    for racer in racers:
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.close()
        racer.wait()
        racer.stdout.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", chunks(full=200, sample=8, of=100), ids=str)
def test_campaign_of_starts_at_once_gives_exactly_one_server_each_time(
    seeds: range,
    supervisor: Supervisor,
    home: Home,
    port: int,
    fake: Path,
    tuners: list[subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    script = Script(tmp_path, port, fake)
    won_by_script = 0
    for seed in seeds:
        chance = random.Random(seed)
        with_script = chance.random() < 0.5
        entered = chance.sample(tuners, chance.randint(1 if with_script else 2, TUNERS))
        starts = [*entered, *([script] if with_script else [])]
        # The script takes some 50 ms to come to its locks, a tuner that waits at the line two or three.
        starts.reverse()
        for contestant in starts:
            if isinstance(contestant, Script):
                contestant.go()
                time.sleep(chance.uniform(0.0, 0.1))
            else:
                assert contestant.stdin is not None
                contestant.stdin.write("go\n")
        results = [racer.stdout.readline() for racer in entered if racer.stdout]
        results += [script.result()] if with_script else []
        winners = [int(result.split()[1]) for result in results if result.startswith("won")]
        assert len(winners) == 1, (seed, results)
        (winner,) = winners
        losers = [result for result in results if not result.startswith("won")]
        assert len(losers) == len(starts) - 1
        assert all(str(winner) in loser for loser in losers), (seed, winner, losers)
        at_work = {racer.pid for racer in tuners}
        assert [p.pid for p in marked(f"race-{port}") if p.pid not in at_work] == [winner], seed
        assert presence.held(home, port)
        if script.process is not None and script.process.pid == winner:
            won_by_script += 1
            assert supervisor.running(port) == []
        else:
            (handle,) = supervisor.running(port)
            assert handle.pid == winner
            assert supervisor.stop(handle).stopped
        script.end()
        assert not psutil.pid_exists(winner) or psutil.Process(winner).status() == psutil.STATUS_ZOMBIE
        assert not presence.held(home, port)
    print(f"{len(seeds)} races, {won_by_script} won by the start script")
