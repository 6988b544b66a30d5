"""``tuner plan``: what a start would give."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tuner.cli.output import DONE, FAILED, UsageProblem, command, json_option, print_json, say, say_findings
from tuner.doctor import diagnose_plan
from tuner.paths import Home
from tuner.planner import plan as make_plan
from tuner.planner.model import Plan
from tuner.recipe import load, merge_set
from tuner.recipe.model import Recipe
from tuner.serverlog.model import BootFacts
from tuner.session.bootlog import read_log
from tuner.session.planning import Given, plan_inputs
from tuner.units import format_bytes, format_gib, format_tokens


@click.command("plan")
@click.argument("preset", required=False)
@click.option("--model", metavar="DIR|config.json", help="Model folder or config.json to plan for.")
@click.option("--sglang", metavar="VER", help="SGLang version whose rules apply.")
@click.option("--free-before", type=float, metavar="GIB", help='avail mem of the first "Load weight begin" line.')
@click.option("--free-after", type=float, metavar="GIB", help='avail mem of the last "Load weight end" line.')
@click.option("--boot-log", metavar="FILE", help="A server log to take the numbers from.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A flag to change; repeatable.")
@json_option
@command
def plan_command(
    preset: str | None,
    model: str | None,
    sglang: str | None,
    free_before: float | None,
    free_after: float | None,
    boot_log: str | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say what a start would give: both pools, admitted requests, longest input, VRAM by named terms."""
    recipe = recipe_for(preset, assignments)
    given = Given(
        model=model,
        sglang_version=sglang,
        free_before_gib=free_before,
        free_after_gib=free_after,
        boot=_boot(boot_log),
        boot_name=Path(boot_log).name if boot_log else None,
    )
    plan = _plan(recipe, given)
    if as_json:
        print_json(plan)
    else:
        _say(plan)
    return DONE if plan.fits else FAILED


def recipe_for(preset: str | None, assignments: tuple[str, ...]) -> Recipe:
    """The recipe a command works on: a preset or file with ``--set`` changes. Raises RecipeError."""
    from tuner.paths import find_preset  # only when a preset is named

    recipe = load(find_preset(preset, Home.find())) if preset else Recipe()
    return merge_set(recipe, assignments)


def _boot(path: str | None) -> BootFacts | None:
    if path is None:
        return None
    facts, _ = read_log(Path(path))
    if facts is None:
        raise UsageProblem(f"The log {path} cannot be read: give the path of a file.")
    return facts


def _plan(recipe: Recipe, given: Given) -> Plan:
    """Everything told: pure arithmetic. Something missing: ask the history and the card."""
    if given.boot is not None or (given.free_before_gib is not None and given.free_after_gib is not None):
        inputs = plan_inputs(recipe, given=given)
        plan = make_plan(inputs)
        return msgspec.structs.replace(plan, findings=diagnose_plan(inputs, plan))
    from tuner.session.session import Session  # the database and the card cost time

    session = Session(Home.find())
    try:
        return session.plan(recipe, given)
    finally:
        session.close()


def _say(plan: Plan) -> None:
    basis = f"calibrated by {plan.calibrated_by}" if plan.calibrated_by else plan.basis
    say(f"SGLang {plan.sglang_version}, {basis}" + (f" ({plan.version_note})" if plan.version_note else ""))
    say(f"KV pool        {format_tokens(plan.kv_tokens)} tokens, {format_gib(plan.kv_gib)}")
    if plan.bytes_per_slot:
        slots = f"{format_tokens(plan.mamba_slots)} slots, {format_gib(plan.mamba_gib)}"
        say(f"State pool     {slots}, {format_bytes(plan.bytes_per_slot)} a slot, {plan.slots_per_request} a request")
    asked = f" of {plan.requests_asked} asked" if plan.requests_asked is not None else ""
    say(f"Requests       {plan.max_running_requests} at once{asked}")
    say(f"Longest input  {format_tokens(plan.longest_input_tokens)} tokens")
    say(f"Binds          {plan.binds}")
    say(f"Free at ready  {format_gib(plan.ready_free_gib)} (lowest {format_gib(plan.lowest_free_gib)})")
    for term in plan.terms:
        say(f"  {term.label:<32}{format_gib(term.gib):>12}  {term.source}")
    if plan.findings:
        say("Findings")
        say_findings(plan.findings)
