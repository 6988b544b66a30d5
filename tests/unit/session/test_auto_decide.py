"""What auto does after a round, one case each, on a world of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hidden_worlds import Auto, world_of

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import PlanInputs
from tuner.planner.solve import Need, shortfalls
from tuner.rounds.model import RoundState
from tuner.serverlog.model import BootFacts
from tuner.session.auto.decide import headroom_of, lacks, may_do, met_words, next_step
from tuner.session.auto.learn import CAPTURE_PEAK, cares, evidence
from tuner.session.auto.model import Ended, Goal, Proof, Start, Stop, Try

GOAL = Goal(need=Need(input_tokens=40_000, agents=3, output_tokens=64, headroom_gib=2.0), keep=("speculative_",))
PROVED = Proof(asked=3, answered=3, together=3, retracted=0)


@pytest.fixture(scope="module")
def inputs() -> PlanInputs:
    world = world_of(0)
    flags = {
        "model_path": "demo/hybrid-27b", "mem_fraction_static": 0.86, "mamba_ssm_dtype": "bfloat16",
        "kv_cache_dtype": "fp8_e4m3", "mamba_full_memory_ratio": 0.9, "max_running_requests": 3,
        "chunked_prefill_size": 4096, "attention_backend": "triton",
    }  # fmt: skip
    return Auto(msgspec.structs.replace(world, recipe=msgspec.structs.replace(world.recipe, flags=flags))).gather(())


def finding(name: FindingId, **flags: Any) -> Finding:
    return Finding(id=name, severity=Severity.FATAL, title=f"{name}!", remedy="Do something.", flags=flags)


def tried(state: RoundState = RoundState.VERIFIED, **more: Any) -> Try:
    found = {"name": "r1", "flags": {"mem_fraction_static": 0.5}, "reason": "It died.", "ready_free_gib": 5.0, **more}
    return Try(state=state, **found)


def after(inputs: PlanInputs, *tries: Try, goal: Goal = GOAL) -> Start | Stop:
    return next_step(goal, inputs, tries)


def stopped(inputs: PlanInputs, *tries: Try, goal: Goal = GOAL) -> Stop:
    step = after(inputs, *tries, goal=goal)
    assert isinstance(step, Stop)
    return step


def started(inputs: PlanInputs, *tries: Try, goal: Goal = GOAL) -> Start:
    step = after(inputs, *tries, goal=goal)
    assert isinstance(step, Start)
    return step


def test_the_first_start_is_solved_with_room_to_spare_and_says_why(inputs: PlanInputs) -> None:
    step = started(inputs)
    assert step.solution.met and step.solution.plan.ready_free_gib >= 3.0
    assert step.solution.inputs.flags["max_running_requests"] == 4
    assert step.reason.startswith("The first start, planned by estimate")


def test_a_proved_round_ends_it(inputs: PlanInputs) -> None:
    stop = stopped(inputs, tried(proof=PROVED))
    assert stop.ended is Ended.MET
    assert "3 requests of 40,000 tokens ran together, all answered, none retracted, 5.00 GiB free" in stop.reason


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"ready_free_gib": 1.5}, "1.50 GiB were free at ready, 2.00 GiB are to stay free."),
        ({"proof": Proof(asked=3, answered=3, together=2, retracted=0)}, "2 of 3 requests were in flight together."),
        ({"proof": Proof(asked=3, answered=3, together=3, retracted=1)}, "1 were retracted"),
        (
            {"proof": Proof(asked=3, answered=1, together=1, errors=("Too long.",))},
            "1 of 3 requests were answered. Too",
        ),
        ({"proof": None}, "The need was not tried on it."),
    ],
)
def test_what_falls_short_is_named_and_corrected(inputs: PlanInputs, more: dict[str, Any], sentence: str) -> None:
    short = tried(**{"proof": PROVED} | more)
    assert sentence in " ".join(lacks(GOAL, short, 2.0))
    assert sentence in started(inputs, short).reason


def test_after_a_retraction_more_is_held_for_answers(inputs: PlanInputs) -> None:
    retracted = tried(proof=Proof(asked=3, answered=3, together=3, retracted=2))
    need = next(iter(cares(inputs, GOAL.need, 2.0, (retracted,)))).need
    assert need.output_tokens > GOAL.need.output_tokens + 200


def test_a_capture_that_dies_leaves_more_room_the_next_time(inputs: PlanInputs) -> None:
    died = tried(
        RoundState.FAILED, cause=finding(FindingId.OOM_IN_CAPTURE),
        boot=BootFacts(free_before_gib=46.0, free_after_gib=18.0, kv_tokens=1, free_before_graphs_gib=4.0),
    )  # fmt: skip
    step = started(inputs, died)
    plan = step.solution.plan
    graphs = next(term.gib for term in plan.terms if term.name == "graphs")
    assert "The graphs take more than 4.00 GiB at their peak" in step.reason
    prefill_off = step.solution.inputs.flags.get("cuda_graph_backend_prefill") == "disabled"
    assert prefill_off or plan.ready_free_gib + graphs > 4.0 > 4.0 / CAPTURE_PEAK


def test_weights_larger_than_thought_are_read_from_the_log_of_the_refusal() -> None:
    facts = BootFacts(free_before_gib=46.0, free_after_gib=12.0)
    refused = tried(RoundState.FAILED, cause=finding(FindingId.NO_ROOM_AT_SIZING), boot=facts)
    assert evidence((refused,)) is facts
    came = tried(boot=msgspec.structs.replace(facts, kv_tokens=1000))
    assert evidence((refused, came)) is None


def test_running_out_while_serving_leaves_a_gib_more(inputs: PlanInputs) -> None:
    died = tried(RoundState.FAILED, cause=finding(FindingId.OOM_WHILE_SERVING))
    assert started(inputs, died).solution.plan.ready_free_gib >= 4.0


def test_the_doctors_flags_are_tried_once(inputs: PlanInputs) -> None:
    crash = tried(RoundState.FAILED, cause=finding(FindingId.KERNEL_CRASH, attention_backend="flashinfer"))
    step = started(inputs, crash)
    assert step.solution.inputs.flags["attention_backend"] == "flashinfer"
    again = stopped(inputs, crash, msgspec.structs.replace(crash, name="r2"))
    assert again.ended is Ended.CANNOT_START and "r2 did not start" in again.reason


def test_a_remedy_that_touches_what_is_kept_is_not_taken(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, keep=("attention_backend",))
    crash = tried(RoundState.FAILED, cause=finding(FindingId.KERNEL_CRASH, attention_backend="flashinfer"))
    assert stopped(inputs, crash, goal=goal).ended is Ended.CANNOT_START


@pytest.mark.parametrize(
    ("round_", "ended"),
    [
        (tried(RoundState.FAILED, cause=finding(FindingId.MODULE_MISSING)), Ended.CANNOT_START),
        (tried(RoundState.REFUSED, cause=finding(FindingId.PORT_IN_USE)), Ended.CANNOT_START),
        (tried(RoundState.FAILED), Ended.CANNOT_START),
        (tried(RoundState.UNVERIFIED, reason="tool call: no tool was called."), Ended.NOT_VERIFIED),
        (tried(RoundState.FAILED, cause=finding(FindingId.OOM_WHILE_LOADING)), Ended.IMPOSSIBLE),
        (tried(RoundState.ABORTED), Ended.ABORTED),
    ],
)
def test_what_no_split_of_the_memory_mends_ends_it_at_once(inputs: PlanInputs, round_: Try, ended: Ended) -> None:
    stop = stopped(inputs, round_)
    assert stop.ended is ended and stop.reason


def test_a_time_that_memory_cannot_buy_is_said_to_be_physics(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, ttft_p95_s=1.0)
    slow = Proof(asked=3, answered=3, together=3, retracted=0, timed=21, ttft_p95_s=9.0, physics="It is physics.")
    stop = stopped(inputs, tried(proof=slow), goal=goal)
    assert stop.ended is Ended.IMPOSSIBLE
    assert "TTFT p95 was 9.0 s, 1.0 s is wanted. It is physics." in stop.reason.replace("9.00", "9.0").replace(
        "1.00", "1.0"
    )
    quick = msgspec.structs.replace(slow, ttft_p95_s=0.9)
    assert "TTFT p95" in met_words(goal, tried(proof=quick))


def test_the_rounds_are_used_up_with_what_is_still_missing(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, max_rounds=1)
    stop = stopped(inputs, tried(proof=PROVED, ready_free_gib=1.0), goal=goal)
    assert stop.ended is Ended.ROUNDS_USED and stop.nearest is not None
    assert stop.reason.startswith("The 1 rounds are used up. 1.00 GiB were free")
    as_it_ran = tried(proof=PROVED, ready_free_gib=1.0, started=False)
    assert isinstance(after(inputs, as_it_ran, goal=goal), Start)


def test_the_same_flags_are_never_started_twice(inputs: PlanInputs) -> None:
    flags = started(inputs).solution.inputs.flags
    stop = stopped(inputs, tried(flags=flags, proof=Proof(asked=3, answered=3, together=2, retracted=0)))
    assert "nothing more was learnt" in stop.reason


def test_out_of_reach_by_far_costs_no_start(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, need=Need(input_tokens=200_000, agents=9, headroom_gib=2.0))
    stop = stopped(inputs, goal=goal)
    assert stop.ended is Ended.IMPOSSIBLE and stop.nearest is not None and stop.nearest.plan.fits
    assert "KV pool holds" in " ".join(stop.missing)


def test_a_server_that_runs_is_proved_as_it_is_only_when_the_plan_allows_it(inputs: PlanInputs) -> None:
    good = started(inputs).solution.inputs.flags
    assert may_do(GOAL, inputs, good)
    assert not may_do(GOAL, inputs, good | {"chunked_prefill_size": 2048})
    assert not may_do(GOAL, inputs, good | {"max_running_requests": 2})


def test_the_headroom_is_the_recipes_where_none_is_asked(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, need=Need(input_tokens=1000))
    assert headroom_of(goal, inputs) == inputs.headroom_line_gib
    assert not shortfalls(started(inputs, goal=goal).solution.plan, goal.need, inputs.headroom_line_gib)
