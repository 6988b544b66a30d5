"""What auto does next, and why. Pure: the goal, what is known for a plan, and the rounds so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuner.findings import Finding, FindingId
from tuner.planner.changes import changed_flags
from tuner.planner.forward import plan
from tuner.planner.model import LEAST_FREE_GIB, PlanInputs
from tuner.planner.need import longest_answer, shortfalls
from tuner.planner.resolve import pin_draft
from tuner.planner.solve import MAY_CHANGE, Solution, solve
from tuner.rounds.model import RoundState
from tuner.session.auto.latency import ENOUGH, slow, times_words, undecided
from tuner.session.auto.learn import OF_MEMORY, Care, at_best, cares, graphs_told, weights_told
from tuner.session.auto.model import Ended, Goal, Proof, Start, Step, Stop, Try
from tuner.units import format_gib, format_tokens

#: The card counts in MiB, and a reading may be off by some of them.
_READING_GIB = 0.01


def headroom_of(goal: Goal, inputs: PlanInputs) -> float:
    """Free VRAM at ready that is wanted, GiB."""
    asked = goal.need.headroom_gib
    return asked if asked is not None else inputs.headroom_line_gib


def next_step(goal: Goal, inputs: PlanInputs, tries: Sequence[Try]) -> Step:
    """The next start with its reason, or the end.

    ``inputs`` are for the flags that the operator came with, calibrated as well as the history allows; ``tries`` are
    the rounds of this auto, oldest first. Raises CannotPlan with one sentence where nothing can be planned at all.
    """
    headroom = headroom_of(goal, inputs)
    last = tries[-1] if tries else None
    if last is not None:
        if last.verified and last.proof is not None and not lacks(goal, last, headroom):
            return Stop(ended=Ended.MET, reason=met_words(goal, last))
        if (stop := _hopeless(goal, tries, headroom)) is not None:
            return stop
    inputs = _mended(inputs, tries, goal.keep)
    found = _planned(goal, inputs, tries, headroom)
    if isinstance(found, Stop):
        return found
    if sum(tried.started for tried in tries) >= goal.max_rounds:
        short = "; ".join(lacks(goal, last, headroom)) if last is not None else ""
        return Stop(
            ended=Ended.ROUNDS_USED,
            reason=f"The {goal.max_rounds} rounds are used up. {short}".strip(),
            missing=lacks(goal, last, headroom) if last is not None else (),
            nearest=found,
        )
    flags = found.inputs.flags
    if any(tried.flags == flags for tried in tries):
        assert last is not None
        return Stop(
            ended=Ended.CANNOT_START if not last.verified else Ended.NOT_VERIFIED,
            reason=f"The plan that should meet the need did not, and nothing more was learnt from {last.name}.",
            missing=lacks(goal, last, headroom),
            nearest=found,
        )
    return Start(solution=found, reason=_why(found, inputs, last, headroom, goal))


def may_do(goal: Goal, inputs: PlanInputs, flags: Mapping[str, Any]) -> bool:
    """Whether a server with ``flags`` is one that a solution could have made, and meets the need by the plan.

    ``inputs`` are for the operator's flags. Raises CannotPlan with one sentence.
    """
    kept = [
        name for name in {*flags, *inputs.flags} if not name.startswith(MAY_CHANGE) or name.startswith(goal.keep or "=")
    ]
    if any(flags.get(name) != inputs.flags.get(name) for name in kept):
        return False
    headroom = headroom_of(goal, inputs)
    planned = plan(msgspec.structs.replace(pin_draft(inputs), flags=dict(flags)))
    return not shortfalls(planned, goal.need, headroom - _READING_GIB)


def lacks(goal: Goal, tried: Try, headroom_gib: float) -> tuple[str, ...]:
    """What a round lacks for the goal, one sentence each; empty when it was seen to meet it."""
    if not tried.verified:
        return (tried.reason or f"{tried.name} was not verified.",)
    missing: list[str] = []
    free = tried.ready_free_gib
    if free is not None and free < headroom_gib - _READING_GIB:
        missing.append(f"{format_gib(free)} were free at ready, {format_gib(headroom_gib)} are to stay free.")
    if tried.proof is None:
        return (*missing, "The need was not tried on it.")
    return (*missing, *_unproved(tried.proof), *slow(goal, tried.proof))


def _unproved(proof: Proof) -> tuple[str, ...]:
    missing: list[str] = []
    if proof.broken_off:
        return ("The proof was broken off.",)
    if proof.answered < proof.asked:
        told = f" {proof.errors[0]}" if proof.errors else ""
        missing.append(f"{proof.answered} of {proof.asked} requests were answered.{told}")
    elif proof.together < proof.asked:
        missing.append(f"{proof.together} of {proof.asked} requests were in flight together.")
    if proof.retracted:
        missing.append(f"{proof.retracted} were retracted: the KV pool ran full.")
    if proof.timed_failed:
        missing.append(f"{proof.timed_failed} of the requests sent for the times were not answered.")
    return tuple(missing)


def met_words(goal: Goal, tried: Try) -> str:
    """What was seen, one sentence."""
    assert tried.proof is not None
    proof, need = tried.proof, goal.need
    retracted = "none retracted" if proof.retracted == 0 else "retractions not counted"
    many = f"{proof.asked} requests of {format_tokens(need.input_tokens)} tokens ran together"
    words = many if proof.asked > 1 else f"A request of {format_tokens(need.input_tokens)} tokens was answered"
    free = f", {format_gib(tried.ready_free_gib)} free at ready" if tried.ready_free_gib is not None else ""
    low = f", {format_gib(proof.lowest_free_gib)} at the least" if proof.lowest_free_gib is not None else ""
    answers = f"all answered with {format_tokens(need.output_tokens)} tokens{_room(goal, tried)}"
    return f"{tried.name}: {words}, {answers}, {retracted}{free}{low}{times_words(goal, proof)}."


def _room(goal: Goal, tried: Try) -> str:
    """How long answers could be before one of the agents is retracted: a pool that is met may be met narrowly."""
    kv_tokens = tried.boot.kv_tokens if tried.boot is not None else None
    if tried.plan is None or kv_tokens is None:
        return ""
    return f" (room for {format_tokens(longest_answer(goal.need, tried.plan, kv_tokens))} each)"


def _hopeless(goal: Goal, tries: Sequence[Try], headroom: float) -> Stop | None:
    """The end that no other split of the memory can avoid; None where one may."""
    last = tries[-1]
    missing = lacks(goal, last, headroom)
    if last.verified:
        proof = last.proof
        if proof is not None and missing == slow(goal, proof):
            if undecided(goal, proof):
                reason = f"{' '.join(missing)} So few say nothing sure of a p95: {ENOUGH} would."
                return Stop(ended=Ended.NOT_VERIFIED, reason=reason, missing=missing)
            words = proof.physics or "Memory buys no speed."
            return Stop(ended=Ended.IMPOSSIBLE, reason=f"{' '.join(missing)} {words}", missing=missing)
        return None
    if last.state is RoundState.UNVERIFIED:
        return Stop(ended=Ended.NOT_VERIFIED, reason=f"{last.name} serves, but {last.reason}", missing=missing)
    cause = last.cause
    if last.state is RoundState.ABORTED:
        return Stop(ended=Ended.ABORTED, reason=f"{last.name} was broken off.", missing=missing)
    if cause is not None and cause.id is FindingId.OOM_WHILE_LOADING:
        return Stop(
            ended=Ended.IMPOSSIBLE, reason=f"The weights do not fit on this card. {last.reason}", missing=missing
        )
    if cause is not None and (cause.id in OF_MEMORY or _fresh(cause, tries[:-1], goal.keep)):
        return None
    return Stop(ended=Ended.CANNOT_START, reason=f"{last.name} did not start: {last.reason}", missing=missing)


def _fresh(cause: Finding, earlier: Sequence[Try], keep: Sequence[str]) -> bool:
    """Whether the doctor's remedy changes flags that may be changed, and was not tried yet."""
    if not cause.flags or any(name.startswith(kept) for name in cause.flags for kept in keep):
        return False
    return all(tried.cause is None or tried.cause.id is not cause.id for tried in earlier)


def _mended(inputs: PlanInputs, tries: Sequence[Try], keep: Sequence[str]) -> PlanInputs:
    """The operator's flags with the doctor's remedies for what was no matter of memory."""
    remedies: list[Mapping[str, Any]] = []
    for number, tried in enumerate(tries):
        cause = tried.cause
        if tried.verified or cause is None or cause.id in OF_MEMORY:
            continue
        if _fresh(cause, tries[:number], keep):
            remedies.append(cause.flags)
    if not remedies:
        return inputs
    return msgspec.structs.replace(inputs, flags=changed_flags(inputs.flags, remedies))


def _planned(goal: Goal, inputs: PlanInputs, tries: Sequence[Try], headroom: float) -> Solution | Stop:
    """The start to make next, or the proof that none meets the need."""
    first = None
    spares: list[tuple[Care, Solution]] = []
    for care in cares(inputs, goal.need, headroom, tries, goal.keep):
        last = solve(care.inputs, care.need, keep=goal.keep)
        first = first or last
        if last.met and care.optional:
            spares.append((care, last))
        elif last.met:
            return next((spare for care, spare in spares if care.worth(spare.flags, last.flags)), last)
    assert first is not None
    told = weights_told(inputs) and graphs_told(inputs)
    if not told:
        need = msgspec.structs.replace(goal.need, headroom_gib=headroom)
        best = solve(at_best(inputs, tries), need, keep=goal.keep)
        if best.met:
            return _first_that_starts(first, last)
    how = "By the boot log of this server" if told else "Even at the best end of what is not yet known"
    return Stop(
        ended=Ended.IMPOSSIBLE,
        reason=f"{how} no change of flags meets the need: {' '.join(last.missing)}",
        missing=last.missing,
        nearest=last if last.plan.fits else None,
    )


def _first_that_starts(*solutions: Solution) -> Solution:
    """The most careful of them that comes up at all: a start whose log tells what is not known yet."""
    return next((solution for solution in solutions if solution.plan.fits), solutions[-1])


def _why(solution: Solution, inputs: PlanInputs, last: Try | None, headroom: float, goal: Goal) -> str:
    """Why the next round is made, one or two sentences for its note."""
    reasons = " ".join(solution.reasons) or "The flags as they are should meet the need."
    if solution.plan.fits and solution.plan.lowest_free_gib < LEAST_FREE_GIB:
        reasons += f" The start comes down to {format_gib(solution.plan.lowest_free_gib)} free: near to an end."
    if last is not None:
        learnt = _learnt(last, headroom, goal)
        return f"{learnt} {reasons}"
    if inputs.calibrated_by:
        return f"Planned from {inputs.calibrated_by}. {reasons}"
    if not solution.met:
        return f"By estimate the need is out of reach, but not surely: this start tells. {reasons}"
    return f"The first start, planned by estimate; its log makes the next plan exact. {reasons}"


def _learnt(last: Try, headroom: float, goal: Goal) -> str:
    if last.cause is not None and not last.verified:
        title = last.cause.title
        boot = last.boot
        match last.cause.id:
            case FindingId.OOM_IN_CAPTURE if boot is not None and boot.free_before_graphs_gib is not None:
                return (
                    f"{last.name}: {title} The graphs take more than {format_gib(boot.free_before_graphs_gib)} at "
                    "their peak, so less goes to the pools."
                )
            case FindingId.NO_ROOM_AT_SIZING | FindingId.SLOTS_NEGATIVE if boot is not None and boot.free_after_gib:
                return f"{last.name}: {title} After the weights {format_gib(boot.free_after_gib)} were free."
            case FindingId.OOM_WHILE_SERVING:
                return f"{last.name}: {title} More is left free beside the pools."
            case _:
                return f"{last.name}: {title} {last.cause.remedy}".strip()
    return f"{last.name}: {' '.join(lacks(goal, last, headroom))} Its log tells what the estimate did not."
