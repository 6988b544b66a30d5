"""``tuner doctor``: what is wrong, what it means, and the next step with the flags to set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from tuner.cli.log import round_named
from tuner.cli.output import DONE, FAILED, UsageProblem, command, json_option, print_json, say
from tuner.cli.plan import inputs_for
from tuner.cli.recipes import recipe_for
from tuner.cli.remedies import say_remedied
from tuner.findings import Severity
from tuner.paths import Home
from tuner.planner.model import Plan, PlanInputs
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round, RoundState
from tuner.serverlog.model import BootFacts
from tuner.session.diagnosing import Diagnosis, Unreadable, diagnose_ended, diagnose_files, diagnose_running
from tuner.session.planning import Given
from tuner.session.session import Session

#: Of the plan after a remedy, what a script may want to compare.
_AFTER = (
    "fits",
    "kv_tokens",
    "mamba_slots",
    "max_running_requests",
    "longest_input_tokens",
    "ready_free_gib",
    "binds",
    "basis",
)


@click.command("doctor")
@click.argument("preset", required=False, metavar="[PRESET|rN]")
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    help="Judge this server log; give those of a prefill and a decode role together.",
)
@click.option("--metrics", metavar="FILE", help="Judge this answer of /metrics.")
@json_option
@command
def doctor_command(preset: str | None, logs: tuple[str, ...], metrics: str | None, as_json: bool) -> int:
    """Say what is wrong and what to do: with the running server, with files, with the plan of PRESET, with round rN.

    Where a recipe is known (the running server's, PRESET, or the round's), each remedy is planned before it is
    offered. Exit status 1 when something above a note is found.
    """
    if preset is None and not logs and metrics is None:
        session = Session(Home.find())
        try:
            diagnosis = diagnose_running(session)
        finally:
            session.close()
    else:
        diagnosis = _of_files(preset, logs, metrics)
    if as_json:
        print_json(_json(diagnosis))
    else:
        _say(diagnosis)
    return FAILED if any(r.finding.severity is not Severity.NOTE for r in diagnosis.findings) else DONE


def _of_files(preset: str | None, logs: tuple[str, ...], metrics: str | None) -> Diagnosis:
    if preset is not None and Path(preset).suffix == ".log":
        raise UsageProblem(f"{preset} is a log, not a recipe: give it as --log {preset}.")
    round_ = round_named(preset) if preset is not None else None
    if round_ is not None and not logs and metrics is None:
        return _of_round(round_)
    recipe = round_.recipe if round_ is not None else recipe_for(preset, ()) if preset is not None else None
    try:
        return diagnose_files(
            [Path(log) for log in logs],
            Path(metrics) if metrics is not None else None,
            recipe,
            _inputs_of(recipe) if recipe is not None else None,
        )
    except Unreadable as problem:
        raise UsageProblem(str(problem)) from problem


def _of_round(round_: Round) -> Diagnosis:
    """What is to be said of a round at its end, its remedies planned with the numbers of its own start."""
    if round_.state in (RoundState.STARTING, RoundState.CHECKING):
        raise UsageProblem(f"{round_.name} is not at its end: tuner doctor without a name looks at what runs.")
    return diagnose_ended(round_, _inputs_of(round_.recipe, round_.name))


def _inputs_of(recipe: Recipe, boot_name: str = "the log") -> Callable[[BootFacts | None], PlanInputs]:
    """Gathers a plan's inputs with the numbers of a log that tells memory."""

    def gather(facts: BootFacts | None) -> PlanInputs:
        told = facts is not None and facts.free_before_gib is not None
        return inputs_for(recipe, Given(boot=facts, boot_name=boot_name) if told else Given())

    return gather


def _json(diagnosis: Diagnosis) -> dict[str, Any]:
    findings = [
        {**msgspec.to_builtins(r.finding), "after": _after(r.after), "problem": r.problem, "stays": r.stays}
        for r in diagnosis.findings
    ]
    return {"of": diagnosis.of, "findings": findings, "unplanned": diagnosis.unplanned}


def _after(plan: Plan | None) -> dict[str, Any] | None:
    return None if plan is None else {name: getattr(plan, name) for name in _AFTER}


def _say(diagnosis: Diagnosis) -> None:
    say(f"Looked at {diagnosis.of}.")
    if not diagnosis.findings:
        say("Nothing is wrong that the tuner knows of.")
        return
    say_remedied(diagnosis.findings)
    if diagnosis.unplanned:
        say(f"The remedies are not planned: {diagnosis.unplanned}")
