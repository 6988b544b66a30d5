"""Admission, chunks, decode, retraction, limits and counters, without waiting for time."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.planner.admission import rows_needed, tokens_together
from tuner.serverlog.batch import batch_line
from tuner.sim.answers import babble
from tuner.sim.cache import CacheShape, Keeping, PrefixCache
from tuner.sim.faults import parse_faults
from tuner.sim.flags import Options
from tuner.sim.limits import Limits, Refusal
from tuner.sim.requests import Request, RequestKind
from tuner.sim.scheduler import Scheduler
from tuner.sim.speed import Speed
from tuner.sim.stats import Stats

LIMITS = Limits(
    max_running=3,
    chunk=4096,
    policy="fcfs",
    context_len=262_144,
    draft_tokens=0,
    acceptance=0.8,
    decode_graphs=True,
    prefill_graphs=True,
    max_queued=None,
    warmed_up=True,
)


def scheduler(
    keeping: Keeping = Keeping.EXTRA_BUFFER, *, kv_tokens: int = 262_294, slots: int = 57,
    faults: tuple[str, ...] = (), **limits: object,
) -> Scheduler:  # fmt: skip
    cache = PrefixCache(
        CacheShape(keeping=keeping, kv_tokens=kv_tokens, slots=0 if keeping is Keeping.PLAIN else slots)
    )
    return Scheduler(
        cache,
        msgspec.structs.replace(LIMITS, **limits),
        Speed(Options(noise=0.0)),
        Stats(),
        parse_faults(faults),
        vocabulary=1000,
    )


def request(start: int, length: int, new: int = 4, **more: object) -> Request:
    return Request(range(start, start + length), new, lambda _: babble(b"x", new), **more)  # type: ignore[arg-type]


def work_off(server: Scheduler) -> tuple[list[str], float]:
    lines, seconds = [], 0.0
    while (work := server.next_work()) is not None:
        seconds += work.seconds
        line = work.done()
        if line:
            lines.append(line)
    return lines, seconds


def test_a_long_prompt_is_computed_in_chunks_and_logged_as_recorded() -> None:
    server = scheduler()
    server.submit(request(0, 8003))
    lines, _ = work_off(server)
    seen = [batch_line(line) for line in lines]
    assert [(line.new_tokens, line.cached_tokens) for line in seen if line] == [(4096, 0), (3907, 0)]
    assert "#pending-token: 3907" in lines[0]
    assert lines[0].startswith(
        "Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0, full token usage: 0.03,"
    )


def test_only_as_many_requests_run_as_are_admitted() -> None:
    server = scheduler()
    for n in range(8):
        server.submit(request(n * 1000, 512, new=50))
    first = server.next_work()
    assert first is not None
    line = first.done()
    assert line is not None
    assert "#new-seq: 3, #new-token: 1536" in line
    assert "#queue-req: 5, #pending-token: 2560" in line
    assert len(server.running) == 3
    work_off(server)
    assert server.stats.requests["false"] == 8
    assert server.cache.used_tokens == server.cache.used_slots == 0


def test_decode_lines_come_every_forty_steps_with_slots_and_acceptance() -> None:
    server = scheduler(draft_tokens=2, acceptance=1.0)
    server.submit(request(0, 512, new=400))
    lines, _ = work_off(server)
    decoded = [batch_line(line) for line in lines if line.startswith("Decode")]
    assert decoded
    first = decoded[0]
    assert first is not None
    assert (first.mamba_slots, first.acceptance_length, first.acceptance_rate, first.graph) == (4, 2.0, 1.0, True)


def test_speculation_takes_fewer_steps_for_the_same_answer() -> None:
    plain, drafted = scheduler(), scheduler(draft_tokens=2, acceptance=0.8)
    for server in (plain, drafted):
        server.submit(request(0, 100, new=200))
    slow, fast = work_off(plain)[1], work_off(drafted)[1]
    assert fast < slow
    assert 100 < drafted.stats.verify_calls < 130
    assert plain.stats.generated_tokens == drafted.stats.generated_tokens


def test_the_first_request_compiles_and_the_first_hit_compiles_again() -> None:
    server = scheduler()
    times = []
    for tail in range(4):
        asked = Request([*range(8000), 9000 + tail, 1, 2], 1, lambda _: babble(b"x", 1))
        server.submit(asked)
        times.append(work_off(server)[1])
        assert asked.cached_tokens == (0 if tail == 0 else 8000)
    assert times[0] > times[1] > times[2]
    assert times[2] == pytest.approx(times[3])


def test_lpm_takes_the_request_with_the_longest_cached_prefix_first() -> None:
    def order(policy: str) -> list[int]:
        server = scheduler(max_running=1, policy=policy)
        server.submit(request(0, 1000, new=1))
        work_off(server)
        fresh = request(50_000, 1000, new=1)
        hit = request(0, 1001, new=1)
        server.submit(fresh)
        server.submit(hit)
        served = []
        while (work := server.next_work()) is not None:
            work.done()
            served += [n for n, r in enumerate((fresh, hit)) if r.finished and n not in served]
        return served

    assert order("lpm") == [1, 0]
    assert order("fcfs") == [0, 1]


def test_too_long_inputs_are_refused_with_the_recorded_sentences() -> None:
    server = scheduler(draft_tokens=2)
    server.check_length(262_137, 4)
    with pytest.raises(Refusal, match=r"The input \(300002 tokens\) is longer than the model's context length"):
        server.check_length(300_000, 4)
    small = scheduler(kv_tokens=63_501)
    small.check_length(63_494, 4)
    with pytest.raises(Refusal, match=r"Input length \(65620 tokens\) exceeds the maximum allowed length \(63495"):
        small.check_length(65_620, 4)
    with pytest.raises(Refusal, match="Requested token count exceeds"):
        server.check_length(262_000, 1000)


def test_a_limit_off_by_one_refuses_what_it_says_it_takes() -> None:
    honest = scheduler(kv_tokens=63_501)
    wrong = scheduler(kv_tokens=63_501, limit_shift=-1)
    honest.check_length(63_494, 4)
    with pytest.raises(Refusal, match="63495"):
        wrong.check_length(63_494, 4)


def test_a_full_queue_is_refused_with_503() -> None:
    server = scheduler(max_queued=1)
    server.submit(request(0, 10))
    with pytest.raises(Refusal) as refused:
        server.check_length(10, 1)
    assert refused.value.status == 503


def test_when_kv_runs_out_the_latest_request_is_retracted_and_served_later() -> None:
    # A server told to be careless lets in what comes later.
    server = scheduler(Keeping.PLAIN, kv_tokens=1000, conservativeness=0.1)
    asked = [request(n * 10_000, 100, new=400) for n in range(3)]
    for each in asked:
        server.submit(each)
        prefill = server.next_work()
        assert prefill is not None
        prefill.done()
    assert len(server.running) == 3
    work_off(server)
    assert [each.finish_reason for each in asked] == ["length"] * 3
    assert all(len(each.output) == 400 for each in asked)
    assert server.stats.retracted_requests > 0
    assert asked[0].retractions == 0
    assert any(note.startswith("KV cache pool is full. Retract requests.") for note in server.notes)
    assert server.cache.used_tokens == 0


def test_an_aborted_request_gives_its_room_back_at_any_moment() -> None:
    server = scheduler()
    queued, running, prefilling = request(0, 512, 50), request(1000, 512, 50), request(5000, 9000, 50)
    server.submit(running)
    for _ in range(2):
        work = server.next_work()
        assert work is not None
        work.done()
    server.submit(prefilling)
    work = server.next_work()
    assert work is not None
    server.abort(prefilling)
    work.done()
    server.submit(queued)
    server.abort(queued)
    server.abort(running)
    assert server.in_flight == []
    assert server.next_work() is None
    assert server.cache.used_tokens == server.cache.used_slots == 0
    assert server.stats.aborted == 3


def test_a_cache_that_is_off_by_fault_never_hits() -> None:
    server = scheduler(faults=("cache-off",))
    for _ in range(2):
        asked = request(0, 1000, new=1)
        server.submit(asked)
        work_off(server)
        assert asked.cached_tokens == 0


def test_counters_say_what_was_cached_and_what_was_computed() -> None:
    server = scheduler()
    for tail in (1, 2, 3):
        server.submit(Request([*range(8000), 9000 + tail, 1, 2], 8, lambda _: babble(b"x", 8)))
        work_off(server)
    stats = server.stats
    assert stats.realtime_tokens["prefill_cache"] == stats.cached_tokens == 16_000
    assert stats.realtime_tokens["prefill_compute"] == 8003 + 6
    assert stats.prompt_tokens["false"] == 24_009


def test_health_calls_count_apart() -> None:
    server = scheduler()
    server.submit(request(0, 1, new=1, kind=RequestKind.HEALTH))
    work_off(server)
    assert not server.stats.requests
    assert server.stats.realtime_tokens == {"prefill_compute": 1, "decode": 1}
    assert server.stats.passes == {"prefill_none": 1}
    assert server.stats.queue_time.count == 1


def test_noise_spreads_whole_requests_and_whole_servers() -> None:
    def factors(seed: int, noise: float, round_noise: float) -> list[float]:
        speed = Speed(Options(seed=seed, noise=noise, round_noise=round_noise))
        return [speed.request_factor() for _ in range(400)]

    spread = factors(1, 0.05, 0.0)
    assert statistics.stdev(spread) == pytest.approx(0.05, rel=0.2)
    assert factors(1, 0.05, 0.0) == spread
    assert factors(1, 0.0, 0.0) == [1.0] * 400
    levels = [factors(seed, 0.0, 0.02)[0] for seed in range(400)]
    assert statistics.stdev(levels) == pytest.approx(0.02, rel=0.2)


def test_times_can_be_fixed_and_compilation_turned_off() -> None:
    server = scheduler()
    fixed = Options(noise=0.0, ttft_s=0.3, itl_s=0.01, compile_factor=0.0)
    server = Scheduler(server.cache, LIMITS, Speed(fixed), Stats(), parse_faults(()), vocabulary=1000)
    server.submit(request(0, 100, new=11))
    assert work_off(server)[1] == pytest.approx(0.3 + 10 * 0.01)


def test_a_hundred_conversations_on_few_slots_never_get_stuck() -> None:
    server = scheduler(slots=15)
    for n in range(100):
        server.submit(request((n % 7) * 1000, 200 + n, new=10))
    work_off(server)
    assert server.stats.requests["false"] == 100
    assert server.cache.evicted_states > 0
    assert server.stats.evicted_tokens == server.cache.evicted_tokens


@pytest.mark.parametrize(("rows", "together"), [(3, 2), (4, 3)])
def test_of_three_long_inputs_sent_at_once_the_last_waits_unless_there_is_a_row_to_spare(
    rows: int, together: int
) -> None:
    # Seen on a real 0.5.17: 265,968 tokens, three inputs of 88,165, and the third waited for the first to end.
    server = scheduler(kv_tokens=265_968, max_running=rows)
    for n in range(3):
        server.submit(request(n * 100_000, 88_165, new=64))
    most = 0
    while (work := server.next_work()) is not None:
        work.done()
        most = max(most, len(server.running))
    assert most == together
    assert server.stats.requests["false"] == 3 and server.stats.retracted_requests == 0


@given(
    agents=st.integers(2, 4),
    length=st.integers(100, 3000),
    answer=st.integers(2, 400),
    less=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_pool_that_the_planner_asks_for_lets_all_of_them_run_together(
    agents: int, length: int, answer: int, less: bool
) -> None:
    chunk = 512
    tokens = tokens_together(agents, length, answer) - (agents * length // 3 if less else 0)
    rows = rows_needed(agents, length, chunk, counted_twice=True)
    server = scheduler(Keeping.PLAIN, kv_tokens=tokens, max_running=rows, chunk=chunk)
    for n in range(agents):
        server.submit(request(n * 10_000, length, new=answer))
    most = 0
    while (work := server.next_work()) is not None:
        work.done()
        most = max(most, len(server.running))
    assert (most == agents and not server.stats.retracted_requests) is not less
