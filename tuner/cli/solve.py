"""``tuner solve``: from what a server must be good for to the flags that give it."""

from __future__ import annotations

from typing import Any

import click

from tuner.cli.amounts import Gib, Tokens
from tuner.cli.needs import needed
from tuner.cli.output import DONE, FAILED, command, json_option, print_json, say, say_findings
from tuner.cli.plan import flags_words, given_from, inputs_for, planned_recipe, planning_options, say_plan
from tuner.planner.solve import Solution
from tuner.session.needs import Stated
from tuner.session.solving import solved


@click.command("solve")
@click.option("--input", "input_tokens", type=Tokens(), metavar="TOKENS", help="Longest input: 90K; the recipe's.")
@click.option("--agents", type=click.IntRange(min=1), metavar="N", help="Agents that run at once; the recipe's.")
@click.option(
    "--warm-prefixes",
    type=click.IntRange(min=0),
    metavar="M",
    help="Conversations to keep warm beside those that run.",
)
@click.option(
    "--output",
    "output_tokens",
    type=Tokens(),
    metavar="TOKENS",
    help="Longest answer: the pool holds it beside the input; the recipe's or 1.",
)
@click.option("--headroom", type=Gib(), metavar="GIB", help="VRAM to leave free at ready; 4.4 GiB unless set.")
@planning_options
@json_option
@command
def solve_command(
    input_tokens: int | None,
    agents: int | None,
    warm_prefixes: int | None,
    output_tokens: int | None,
    headroom: float | None,
    preset: str | None,
    model: str | None,
    sglang: str | None,
    free_before: float | None,
    free_after: float | None,
    boot_log: str | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Find the fewest changes to PRESET that meet a need. When nothing does: the nearest, and what it lacks.

    What --set says stays; every other flag may change. Without PRESET the flags are those that the boot log echoes.
    What is not asked for is taken from the need_ keys of the recipe's [tuner] table.
    """
    given = given_from(model, sglang, free_before, free_after, boot_log)
    recipe = planned_recipe(preset, assignments, given)
    inputs = inputs_for(recipe, given)
    need = needed(
        Stated(
            input_tokens=input_tokens,
            agents=agents,
            warm_prefixes=warm_prefixes,
            output_tokens=output_tokens,
            headroom_gib=headroom,
        ),
        recipe.tuner,
    )
    solution = solved(inputs, need, keep=_set_by_hand(assignments))
    flags = flags_words(preset, assignments, given, inputs, solution.plan) if preset is None else ""
    if as_json:
        print_json(
            {
                **({"flags_from": flags} if flags else {}),
                "met": solution.met,
                "recipe": solution.inputs.flags,
                "changes": solution.flags,
                "reasons": solution.reasons,
                "missing": solution.missing,
                "plan": solution.plan,
            }
        )
    else:
        if flags:
            say(flags)
        _say(solution, recipe.flags)
    return DONE if solution.met else FAILED


def _set_by_hand(assignments: tuple[str, ...]) -> tuple[str, ...]:
    """Flags that ``--set`` gives a value; of speculation all, since one flag of it means nothing without the rest."""
    names = [name.strip().replace("-", "_") for name, _, value in (a.partition("=") for a in assignments) if value]
    return tuple("speculative_" if name.startswith("speculative_") else name for name in names)


def _say(solution: Solution, before: dict[str, Any]) -> None:
    if solution.met and not solution.flags:
        say("The flags meet the need as they are.")
    elif solution.met:
        say("These changes meet the need:")
    else:
        say(
            "Nothing meets the need. The nearest that starts:" if solution.plan.fits else "Nothing starts. The nearest:"
        )
    for name, value in solution.flags.items():
        was = f"now {before[name]}" if name in before else "now not set"
        say(f"  {name} = {value}  ({was})" if value is not None else f"  {name}: leave it out  ({was})")
    for reason in solution.reasons:
        say(f"  - {reason}")
    if solution.missing:
        say("Missing:")
        for sentence in solution.missing:
            say(f"  - {sentence}")
    say("What it gives:")
    say_plan(solution.plan)
    if solution.plan.findings:
        say("Findings")
        say_findings(solution.plan.findings)
