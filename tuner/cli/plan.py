"""``tuner plan``: both pools before a start. With every number given it reads neither history nor GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tuner.cli.output import (
    DONE,
    FAILED,
    UsageProblem,
    command,
    json_option,
    print_json,
    say,
    say_findings,
    say_if_only_readable,
)
from tuner.cli.recipes import recipe_for
from tuner.doctor import diagnose_plan
from tuner.flags import FlagValueError, lookup, parse_value
from tuner.paths import Home
from tuner.planner import plan as make_plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs
from tuner.recipe.model import Recipe
from tuner.serverlog.model import BootFacts
from tuner.session.bootlog import read_log
from tuner.session.planning import Given, Here, plan_inputs
from tuner.units import format_bytes, format_gib, format_tokens

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("preset", required=False),
    click.option("--model", metavar="DIR|config.json", help="Model folder or config.json to plan for."),
    click.option("--sglang", metavar="VER", help="SGLang version whose rules apply."),
    click.option("--free-before", type=float, metavar="GIB", help='avail mem of the first "Load weight begin" line.'),
    click.option("--free-after", type=float, metavar="GIB", help='avail mem of the last "Load weight end" line.'),
    click.option("--boot-log", metavar="FILE", help="A server log to take the numbers from."),
    click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A flag to change; repeatable."),
)
#: Names of ``Plan.sources`` in words; the others are flags, called by their own names.
_INPUTS = {
    "model_shape": "model",
    "sglang_version": "SGLang",
    "card": "card",
    "free_before": "free before the weights",
    "free_after": "free after the weights",
    "startup_loss": "start-up loss",
    "context": "CUDA context",
    "bytes_per_slot": "bytes of a slot",
    "bytes_per_token": "bytes of a token",
    "draft_weights": "draft weights",
    "draft_returned": "draft given back",
    "draft_layers_in_cell": "draft layers in the cell",
    "graphs": "graphs",
    "runtime": "runtime",
}


#: Of the flags that size the pools, those of which a plan's ``in_force`` tells nothing unless they are asked for.
_ASKED_SIZES = (
    "max_running_requests",
    "max_mamba_cache_size",
    "max_total_tokens",
    "context_length",
    "tp_size",
    "pp_size",
    "dp_size",
    "enable_dp_attention",
    "enable_unified_memory",
    "speculative_algorithm",
)


def planning_options(function: _F) -> _F:
    """The preset and the inputs that ``tuner plan`` and ``tuner solve`` take."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("plan")
@planning_options
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
    """Say what a start would give: both pools, requests, longest input, VRAM by named terms.

    Without PRESET the flags are those that the boot log echoes; --set goes over them.
    """
    given = given_from(model, sglang, free_before, free_after, boot_log)
    recipe = planned_recipe(preset, assignments, given)
    inputs = inputs_for(recipe, given)
    plan = make_plan(inputs)
    plan = msgspec.structs.replace(plan, findings=diagnose_plan(inputs, plan))
    flags = flags_words(preset, assignments, given, inputs, plan)
    if preset is None and given.boot is not None:
        plan = msgspec.structs.replace(plan, sources=_log_sources(plan, recipe, given.boot))
    if as_json:
        print_json({**msgspec.to_builtins(plan), "flags_from": flags} if flags else plan)
    else:
        if flags:
            say(flags)
        say_plan(plan)
        _say_sources(plan)
        if plan.findings:
            say("Findings")
            say_findings(plan.findings)
    return DONE if plan.fits else FAILED


def given_from(
    model: str | None, sglang: str | None, free_before: float | None, free_after: float | None, boot_log: str | None
) -> Given:
    """What the operator says on the command line. Raises UsageProblem for a log that cannot be read."""
    return Given(
        model=model,
        sglang_version=sglang,
        free_before_gib=free_before,
        free_after_gib=free_after,
        boot=_boot(boot_log),
        boot_name=Path(boot_log).name if boot_log else None,
    )


def _boot(path: str | None) -> BootFacts | None:
    if path is None:
        return None
    facts, _ = read_log(Path(path))
    if facts is None:
        raise UsageProblem(f"The log {path} cannot be read: give the path of a file.")
    return facts


def planned_recipe(preset: str | None, assignments: tuple[str, ...], given: Given) -> Recipe:
    """What is planned: ``preset``, or without one what the boot log echoes, with ``--set`` over it."""
    if preset is not None or given.boot is None:
        return recipe_for(preset, assignments)
    from tuner.recipe import merge_set  # a plan without a log needs no reader

    return merge_set(_echoed(given.boot), assignments)


def _echoed(facts: BootFacts) -> Recipe:
    """The recipe of the start that wrote the log: without defaults; empty where the log echoes no flags."""
    from tuner.recipe.server_answer import from_server_info

    told = facts.server_args
    if not told.get("model_path"):
        return Recipe()
    answer: dict[str, Any] = {}
    for key, text in told.items():
        info = lookup(key)
        if info is not None:
            try:
                value = parse_value(info, text)
            except FlagValueError:
                # A choice of another version: the reader of answers takes those.
                value = text
            answer[info.dest or info.name] = value
    return from_server_info(answer).recipe


def flags_words(preset: str | None, assignments: tuple[str, ...], given: Given, inputs: PlanInputs, plan: Plan) -> str:
    """What the planned flags came from, beside a boot log; with ``preset``, what the log's server had otherwise."""
    if given.boot is None:
        return ""
    echoed = _echoed(given.boot).flags
    log, over = given.boot_name, ", with --set over them" if assignments else ""
    if preset is None:
        return f"Flags of {log}{over}" if echoed else f"No preset, and {log} echoes no flags: SGLang's defaults{over}"
    named = f"Flags of {preset}{over}"
    if not echoed:
        return f"{named}; {log} echoes none"
    try:
        started = make_plan(msgspec.structs.replace(inputs, flags=echoed))
    except CannotPlan as problem:
        return f"{named}; those of {log} cannot be planned: {problem}"
    here, there = _sizes(plan, inputs.flags), _sizes(started, echoed)
    differ = [
        f"{name} {_word(there.get(name))}, not {_word(here.get(name))}"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    return f"{named}; {log} was started with {'; '.join(differ)}" if differ else named


def _sizes(plan: Plan, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What sizes the pools: values in force, and what is asked for beside them."""
    asked = {name: flags[name] for name in _ASKED_SIZES if flags.get(name) is not None}
    if asked.get("speculative_algorithm") == "NEXTN":
        # What a server makes of it and echoes (0.5.9 to 0.5.23).
        asked["speculative_algorithm"] = "EAGLE"
    return {**plan.in_force, **asked}


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)


def _log_sources(plan: Plan, recipe: Recipe, facts: BootFacts) -> dict[str, str]:
    """The plan's sources with "boot log" for each flag that stands as the log echoes it."""
    echoed = _echoed(facts).flags
    return {
        name: "boot log" if name in echoed and source == "recipe" and recipe.flags.get(name) == echoed[name] else source
        for name, source in plan.sources.items()
    }


def inputs_for(recipe: Recipe, given: Given) -> PlanInputs:
    """Everything told: nothing is read here. Something missing: the history and the card are asked."""
    if given.boot is not None or (given.free_before_gib is not None and given.free_after_gib is not None):
        return plan_inputs(recipe, given=given, here=Here(environ=os.environ))
    from tuner.session.session import Session  # the database and the card cost time

    session = Session(Home.find())
    say_if_only_readable(session.history)
    try:
        return session.planning_inputs(recipe, given)
    finally:
        session.close()


#: What runs out first, in words.
_BINDS = {"kv": "KV tokens run out first", "mamba": "state slots cap requests", "requests": "the requests asked"}


def say_plan(plan: Plan) -> None:
    """A plan as text: what it stands on, pools, requests, memory by terms."""
    basis = f"calibrated by {plan.calibrated_by}" if plan.calibrated_by else plan.basis
    say(f"SGLang {plan.sglang_version}, {basis}" + (f" ({plan.version_note})" if plan.version_note else ""))
    if plan.calibration_note:
        say(plan.calibration_note)
    if plan.refusal:
        say(f"Does not start: {plan.refusal}")
    kv_range = _range(plan.kv_tokens_low, plan.kv_tokens_high)
    say(f"KV tokens      {format_tokens(plan.kv_tokens)}{kv_range}, {format_gib(plan.kv_gib)}")
    if plan.bytes_per_slot:
        slots = f"{format_tokens(plan.mamba_slots)}{_range(plan.mamba_slots_low, plan.mamba_slots_high)}"
        a_slot = f"{format_bytes(plan.bytes_per_slot)} a slot, {plan.slots_per_request} a request"
        say(f"State slots    {slots}, {format_gib(plan.mamba_gib)}, {a_slot}")
    asked = f" of {plan.requests_asked} asked" if plan.requests_asked is not None else ""
    say(f"Requests       {plan.max_running_requests}{asked}")
    say(f"Longest input  {format_tokens(plan.longest_input_tokens)} tokens")
    say(f"Binds          {_BINDS[plan.binds]}")
    say(f"Free at ready  {format_gib(plan.ready_free_gib)} (lowest {format_gib(plan.lowest_free_gib)})")
    for term in plan.terms:
        say(f"  {term.label:<32}{format_gib(term.gib):>12}  {term.source}")


def _range(low: int | None, high: int | None) -> str:
    """What two printed decimals leave open, where they leave anything open."""
    if low is None or high is None or low == high:
        return ""
    return f" ({format_tokens(low)} to {format_tokens(high)})"


def _say_sources(plan: Plan) -> None:
    """Each input with its value, where one number says it, and where it comes from."""
    say("Worked out from")
    terms = {term.name: term.gib for term in plan.terms}
    values = {name: format_gib(gib) for name, gib in terms.items()} | {
        "sglang_version": plan.sglang_version,
        "card": _gib(plan.card_gib),
        "free_before": _gib(plan.free_before_gib),
        "free_after": _gib(plan.free_after_gib),
        "startup_loss": format_gib(plan.startup_loss_gib, 3),
        "context": format_gib(max(0.0, terms.get("context", 0.0) - plan.startup_loss_gib)),
        "bytes_per_slot": f"{plan.bytes_per_slot:,}",
        "bytes_per_token": f"{plan.bytes_per_token:,}",
        "max_running_requests": str(plan.in_force.get("max_running_requests", plan.requests_asked)),
        "max_mamba_cache_size": str(plan.mamba_slots),
    }
    for name, source in plan.sources.items():
        value = values.get(name, str(plan.in_force.get(name, "")))
        say(f"  {_INPUTS.get(name, name):<32}{value:>12}  {source}")


def _gib(gib: float | None) -> str:
    return "" if gib is None else format_gib(gib)
