"""``tuner solve``: from what a server must be good for to the flags that give it."""

from __future__ import annotations

from typing import Any

import click

from tuner.cli.output import DONE, FAILED, command, json_option, print_json, say, say_findings
from tuner.cli.plan import given_from, inputs_for, planning_options, recipe_for, say_plan
from tuner.planner.solve import Need, Solution
from tuner.session.solving import solved
from tuner.units import parse_gib, parse_tokens


class _Tokens(click.ParamType[int]):
    """A number of tokens: 90000, 90,000, 90K, 256Ki."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_tokens(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Gib(click.ParamType[float]):
    """An amount of memory: 4.4, 4.4GiB, 512MiB."""

    name = "gib"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_gib(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("solve")
@click.option("--input", "input_tokens", type=_Tokens(), required=True, metavar="TOKENS", help="Longest input: 90K.")
@click.option("--agents", type=click.IntRange(min=1), required=True, metavar="N", help="Agents that run at once.")
@click.option(
    "--warm-prefixes",
    type=click.IntRange(min=0),
    default=0,
    metavar="M",
    help="Conversations to keep warm beside those that run.",
)
@click.option("--headroom", type=_Gib(), metavar="GIB", help="VRAM to leave free at ready; 4.4 GiB unless set.")
@planning_options
@json_option
@command
def solve_command(
    input_tokens: int,
    agents: int,
    warm_prefixes: int,
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
    """Find the fewest changes to PRESET that meet a need. When nothing does: the nearest, and what it lacks."""
    recipe = recipe_for(preset, assignments)
    inputs = inputs_for(recipe, given_from(model, sglang, free_before, free_after, boot_log))
    need = Need(input_tokens=input_tokens, agents=agents, warm_prefixes=warm_prefixes, headroom_gib=headroom)
    solution = solved(inputs, need)
    if as_json:
        print_json(
            {
                "met": solution.met,
                "recipe": solution.inputs.flags,
                "changes": solution.flags,
                "reasons": solution.reasons,
                "missing": solution.missing,
                "plan": solution.plan,
            }
        )
    else:
        _say(solution, recipe.flags)
    return DONE if solution.met else FAILED


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
