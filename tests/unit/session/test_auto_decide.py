"""What auto does after a round, one case each, on a world of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hidden_worlds import Auto, world_of

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import LEAST_FREE_GIB, PlanInputs, Source, Sourced
from tuner.planner.need import Need, shortfalls
from tuner.planner.solve import solve
from tuner.rounds.model import RoundState
from tuner.serverlog.model import BootFacts
from tuner.session.auto.decide import headroom_of, lacks, may_do, next_step
from tuner.session.auto.latency import latency
from tuner.session.auto.learn import cares, evidence
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
    words = "3 requests of 40,000 tokens ran together, all answered with 64 tokens, none retracted, 5.00 GiB free"
    assert words in stop.reason


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
    assert plan.ready_free_gib + graphs > 4.0


def test_pools_that_ran_out_of_memory_leave_more_of_it_all_the_way(inputs: PlanInputs) -> None:
    died = tried(RoundState.FAILED, cause=finding(FindingId.OOM_IN_POOLS))
    needs = [care.need for care in cares(inputs, GOAL.need, 2.0, (died, died))]
    assert all(need.least_free_gib >= 1.0 for need in needs)


@pytest.fixture
def after_a_log(inputs: PlanInputs) -> PlanInputs:
    """A server with a draft whose vocabulary comes back, and graphs that a log has told."""
    flags = inputs.flags | {
        "speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 2, "mamba_radix_cache_strategy": "extra_buffer", "mem_fraction_static": 0.98,
        "cuda_graph_backend_prefill": "disabled",
    }  # fmt: skip
    return msgspec.structs.replace(
        inputs, flags=flags, graphs_gib=0.2, graphs_guess_gib=0.2, prefill_graphs_gib=0.0, prefill_graphs_guess_gib=0.0,
        free_before=Sourced(46.83, Source.BOOT_LOG), free_after=Sourced(13.76, Source.BOOT_LOG),
        draft_weights=Sourced(5.53, Source.BOOT_LOG), free_after_has_draft=True, startup_loss_gib=0.066,
        sizing_loss_gib=0.0,
        calibrated_by="r1",
    )  # fmt: skip


def test_a_start_keeps_away_from_its_end_where_only_the_fraction_pays_for_it(after_a_log: PlanInputs) -> None:
    need = Need(input_tokens=150_000, agents=2, output_tokens=64, headroom_gib=1.0)
    goal = Goal(need=need, keep=("speculative_",))
    assert solve(after_a_log, need, keep=goal.keep).plan.lowest_free_gib < LEAST_FREE_GIB
    step = started(after_a_log, goal=goal)
    assert step.solution.plan.lowest_free_gib >= LEAST_FREE_GIB
    assert "near to an end" not in step.reason


def test_a_start_that_must_come_near_to_its_end_is_made_and_says_so(after_a_log: PlanInputs) -> None:
    need = Need(input_tokens=186_000, agents=2, output_tokens=64, headroom_gib=1.0)
    step = started(after_a_log, goal=Goal(need=need, keep=("speculative_",)))
    assert step.solution.met and 0 <= step.solution.plan.lowest_free_gib < LEAST_FREE_GIB
    assert "free: near to an end." in step.reason


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
    missed = latency([9.0] * 130, 1.0)
    slow = msgspec.structs.replace(PROVED, ttft=missed, physics="It is physics.")
    stop = stopped(inputs, tried(proof=slow), goal=goal)
    assert stop.ended is Ended.IMPOSSIBLE
    assert stop.reason == "TTFT p95 was 9.0 s over 130 requests, 1.0 s is wanted. It is physics."


def test_a_few_late_requests_of_a_few_are_not_called_impossible(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, ttft_p95_s=1.0)
    slow = msgspec.structs.replace(PROVED, ttft=latency([0.5] * 20 + [9.0], 1.0))
    stop = stopped(inputs, tried(proof=slow), goal=goal)
    assert stop.ended is Ended.NOT_VERIFIED
    assert "TTFT was above the 1.0 s wanted in 1 of 21 requests, 9.0 s at the slowest." in stop.reason
    assert "130 would" in stop.reason


def test_requests_for_the_times_that_failed_are_no_matter_of_speed(inputs: PlanInputs) -> None:
    goal = msgspec.structs.replace(GOAL, ttft_p95_s=1.0)
    failed = tried(proof=msgspec.structs.replace(PROVED, ttft=latency([0.5] * 20, 1.0), timed_failed=2))
    assert lacks(goal, failed, 2.0) == ("2 of the requests sent for the times were not answered.",)


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
