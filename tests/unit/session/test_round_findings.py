"""What a round says was found: each thing once, the worst first, and of what really happened."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from tuner.findings import Finding, FindingId, Severity
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round, RoundState
from tuner.server import Supervisor
from tuner.server.model import ReadyOutcome, ReadyState, ServerHandle
from tuner.serverlog.model import BootFacts, Phase
from tuner.serverlog.reader import read_boot
from tuner.session.bench import Bench
from tuner.session.ends import died_while_checked, refused, started
from tuner.session.settle import settled

UNKNOWN_FLAG = "sglang serve: error: unrecognized arguments: --enable-piecewise-cuda-graph\n"
NO_MODEL = (
    "Traceback (most recent call last):\n"
    "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/no/such/model'.\n"
)
NO_SLOTS = (
    "[2026-11-30 02:41:03] Load weight begin. avail mem=46.83 GB\n"
    "[2026-11-30 02:41:04] Load weight end. elapsed=0.54 s, type=Qwen3_5ForCausalLM, avail mem=19.29 GB, "
    "mem usage=27.54 GB.\n"
    "[2026-11-30 02:41:04] Scheduler hit an exception: Traceback (most recent call last):\n"
    "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
    "max_mamba_cache_size=-1 (total_rest_memory=12.73 GB, mamba_cache_per_req=146.81 MB).\n"
    "[2026-11-30 02:41:04] Received sigquit from a child process. It usually means the child failed.\n"
)
KILLED = "[2026-11-30 02:41:03] Load weight begin. avail mem=46.83 GB\n"
RECIPE = Recipe(python="/env/bin/python", flags={"model_path": "/m", "enable_piecewise_cuda_graph": True})


def foreseen(finding_id: FindingId, severity: Severity = Severity.FATAL) -> Finding:
    return Finding(id=finding_id, severity=severity, title="SGLang would refuse this start.", remedy="Change it.")


UNPLANNED = foreseen(FindingId.UNKNOWN, Severity.NOTE)


def starting(*findings: Finding) -> Round:
    return Round(number=4, started_at=0.0, state=RoundState.STARTING, recipe=RECIPE, findings=findings)


def came_to(log: str, state: ReadyState = ReadyState.DIED, *findings: Finding) -> Round:
    lines = tuple(log.splitlines())
    outcome = ReadyOutcome(state=state, seconds=9.0, facts=read_boot(log), reason="It ended.", last_lines=lines)
    return started(starting(*findings), outcome, {})


def told(round_: Round) -> list[tuple[FindingId, Severity]]:
    return [(finding.id, finding.severity) for finding in round_.findings]


def test_a_flag_that_was_foreseen_to_be_refused_is_told_once_and_by_the_server() -> None:
    round_ = came_to(UNKNOWN_FLAG, ReadyState.DIED, foreseen(FindingId.UNKNOWN_FLAG))
    assert told(round_) == [(FindingId.UNKNOWN_FLAG, Severity.FATAL)]
    assert round_.findings[0].title.startswith("This SGLang does not know --enable-piecewise-cuda-graph.")
    assert round_.reason.startswith(round_.findings[0].title)


def test_the_cause_of_a_death_stands_before_a_note() -> None:
    round_ = came_to(NO_MODEL, ReadyState.DIED, UNPLANNED)
    assert told(round_) == [(FindingId.MODEL_MISSING, Severity.FATAL), (FindingId.UNKNOWN, Severity.NOTE)]
    assert round_.reason.startswith(round_.findings[0].title)


@pytest.mark.parametrize("forecast", [FindingId.SLOTS_NEGATIVE, FindingId.FLAG_CONFLICT])
def test_no_start_that_ran_and_died_is_said_to_be_refused(forecast: FindingId) -> None:
    round_ = came_to(NO_SLOTS, ReadyState.DIED, foreseen(forecast))
    assert [f.id for f in round_.findings if f.severity is Severity.FATAL] == [FindingId.SLOTS_NEGATIVE]
    assert "would refuse" not in round_.findings[0].title
    assert round_.reason.startswith(round_.findings[0].title)


def test_a_death_without_a_word_keeps_what_was_foreseen_and_its_own_reason() -> None:
    round_ = came_to(KILLED, ReadyState.DIED, foreseen(FindingId.SLOTS_NEGATIVE))
    assert foreseen(FindingId.SLOTS_NEGATIVE) in round_.findings
    assert "would refuse" not in round_.reason


def test_a_start_that_came_up_all_the_same_is_not_said_to_be_refused() -> None:
    outcome = ReadyOutcome(state=ReadyState.READY, seconds=9.0, facts=BootFacts(phase=Phase.READY, ready=True))
    round_ = started(starting(foreseen(FindingId.SLOTS_NEGATIVE), UNPLANNED), outcome, {})
    assert [f.id for f in round_.findings if f.severity is Severity.FATAL] == []
    assert UNPLANNED in round_.findings


def test_a_refusal_tells_its_reason_first_and_nothing_twice() -> None:
    busy = foreseen(FindingId.PORT_IN_USE)
    again = msgspec.structs.replace(busy, title="In other words.")
    round_ = refused(starting(UNPLANNED, again), (busy,), lambda _: None)
    assert round_.findings == (busy, UNPLANNED)


def test_a_round_whose_tuner_went_away_tells_its_cause_first_and_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(NO_SLOTS, encoding="utf-8")
    gone = msgspec.structs.replace(starting(UNPLANNED, foreseen(FindingId.SLOTS_NEGATIVE)), log_path=str(log))
    nothing_runs = cast("Supervisor", SimpleNamespace(running=lambda port: []))
    round_ = settled(gone, nothing_runs)
    assert round_.state is RoundState.FAILED
    assert [f.id for f in round_.findings if f.severity is Severity.FATAL] == [FindingId.SLOTS_NEGATIVE]
    assert "would refuse" not in round_.findings[0].title
    assert [f.severity for f in round_.findings] == sorted(
        (f.severity for f in round_.findings), key=list(Severity).index
    )


def test_a_death_under_the_checks_is_told_before_what_was_found_at_ready(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(NO_SLOTS, encoding="utf-8")
    handle = cast("ServerHandle", SimpleNamespace(log_path=str(log)))
    supervisor = SimpleNamespace(main_lives=lambda handle: False, stop=lambda handle, publish, drain: None)
    old = foreseen(FindingId.SLOTS_NEGATIVE, Severity.WARNING)
    checking = msgspec.structs.replace(starting(UNPLANNED, old), state=RoundState.CHECKING)
    bench = cast("Bench", SimpleNamespace(supervisor=supervisor))
    round_ = died_while_checked(bench, checking, handle, lambda _: None)
    assert [f.id for f in round_.findings].count(FindingId.SLOTS_NEGATIVE) == 1
    assert round_.findings[0].severity is Severity.FATAL
    assert round_.reason == f"The server died while it was checked. {round_.findings[0].title} " + (
        round_.findings[0].remedy
    )
    assert round_.findings[-1].severity is Severity.NOTE
