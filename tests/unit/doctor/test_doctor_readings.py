"""What readings over time and the cards tell of a running server."""

import json
from pathlib import Path

import msgspec
import pytest

from tuner.doctor import Watched, diagnose_cards, diagnose_readings
from tuner.findings import FindingId, Severity
from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.model import GpuProcess, GpuReading, Reach, Readings, Spread
from tuner.serverlog.model import BootFacts, Phase

MEASURED = Path(__file__).parents[2] / "data" / "measured"
SPECULATING = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1}


def reading(at=0.0, **values):
    told = {"metrics": Reach.OK, "loads": Reach.OK, "running": 0, "queued": 0}
    return Readings(at=at, **(told | values))


def ids(*samples, **known):
    return [f.id for f in diagnose_readings(Watched(samples, **known))]


def one(*samples, **known):
    (found,) = diagnose_readings(Watched(samples, **known))
    return found


def test_nothing_told_is_nothing_found():
    assert diagnose_readings(Watched([])) == ()
    assert ids(reading()) == []
    assert ids(Readings(at=0.0, metrics=Reach.OK, loads=Reach.OK)) == []


def test_a_server_without_metrics_is_told_with_the_flag():
    assert one(reading(metrics=Reach.OFF)).flags == {"enable_metrics": True}
    behind_a_gateway = one(reading(metrics=Reach.OFF), flags={"enable_metrics": True})
    assert behind_a_gateway.flags == {}
    assert "rank 0" in behind_a_gateway.remedy
    assert one(reading(metrics=Reach.NONSENSE)).id == FindingId.METRICS_OFF
    assert one(reading(metrics=Reach.LOCKED)).id == FindingId.SECRET_MISSING
    assert one(reading(metrics=Reach.UNREACHABLE, loads=Reach.UNREACHABLE)).id == FindingId.HANG


def test_at_the_cap_with_a_queue_slots_of_080_are_full():
    # 40 slots, 5 a request: 8 run, each holds 4 at steady state, KV at 35 %.
    look = reading(
        running=8,
        queued=3,
        max_running_requests=8,
        slots_used=32,
        slots_total=40,
        kv_used_tokens=35_000,
        kv_total_tokens=100_000,
    )
    found = one(look, flags={"mamba_ssm_dtype": "bfloat16"})
    assert found.id == FindingId.REQUESTS_CAPPED_BY_SLOTS
    assert found.severity == Severity.WARNING
    assert found.flags["max_mamba_cache_size"] > 40
    assert one(look).flags == {"mamba_ssm_dtype": "bfloat16"}
    full = msgspec.structs.replace(look, kv_used_tokens=95_000)
    assert ids(full) == []
    assert ids(msgspec.structs.replace(look, queued=0)) == []


def test_a_number_that_was_asked_for_is_not_blamed_on_the_slots():
    look = reading(
        running=3,
        queued=5,
        max_running_requests=3,
        slots_used=12,
        slots_total=57,
        kv_used_tokens=1_635,
        kv_total_tokens=262_294,
    )
    found = one(look, flags={"max_running_requests": 3})
    assert (found.id, found.severity) == (FindingId.REQUESTS_QUEUE, Severity.NOTE)
    capped = BootFacts(requests_capped_to=3, mamba_slots=15)
    assert ids(look, flags={"max_running_requests": 3}, facts=capped) == [FindingId.REQUESTS_CAPPED_BY_SLOTS]


def test_retracted_requests_are_counted_from_the_first_look_on():
    old, new = reading(retracted_requests=7), reading(at=60.0, retracted_requests=9, max_running_requests=4)
    found = one(old, new)
    assert found.id == FindingId.OOM_WHILE_SERVING
    assert found.title.startswith("2 running requests")
    assert found.flags == {"max_running_requests": 3}
    assert ids(old, msgspec.structs.replace(old, at=60.0)) == []


def prefilling(ratio, seconds=120, rate=500.0):
    return [reading(at=float(at), prefill_tokens_per_s=rate, prefix_hit_ratio=ratio) for at in range(0, seconds, 10)]


def test_prompts_that_never_hit_are_told_with_the_strategy():
    hybrid = [msgspec.structs.replace(r, slots_total=40) for r in prefilling(0.0)]
    assert one(*hybrid).flags == {"mamba_radix_cache_strategy": "extra_buffer"}
    assert one(*hybrid, flags={"disable_radix_cache": True}).flags == {"disable_radix_cache": None}
    known_good = one(*hybrid, flags={"mamba_radix_cache_strategy": "extra_buffer"})
    assert (known_good.severity, known_good.flags) == (Severity.NOTE, {})
    assert ids(*prefilling(0.4)) == []
    # 600 tokens say nothing.
    assert ids(*prefilling(0.0, seconds=20, rate=60.0)) == []


def test_a_recorded_cache_that_never_hits_is_told_from_its_metrics_page():
    data = json.loads((MEASURED / "tiny-auto-strategy-never-hits.json").read_text())
    page = parse_metrics(data["metrics_end"])
    look = ReadingsWindow(seconds=float("inf")).add(0.0, page, Reach.OFF)
    assert FindingId.PREFIX_CACHE_OFF in ids(look, computed_tokens=page.prefill_computed)


SLOW = Spread(p50=24.8, p95=25.0, count=4)
BUSY_CARD = GpuReading(index=0, utilisation=99)


def test_slow_first_tokens_on_a_card_at_its_limit_are_physics():
    look = reading(running=1, ttft_s=SLOW, prefill_tokens_per_s=2_700.0, max_running_requests=3)
    assert one(look, gpus=[BUSY_CARD]).id == FindingId.PHYSICS_NOT_CONFIG
    assert one(look, alone_prefill_tokens_per_s=2_750.0).flags == {}
    # Much slower than the same card can, or behind a queue: that is no physics.
    assert ids(look, alone_prefill_tokens_per_s=9_000.0) == []
    assert ids(msgspec.structs.replace(look, queued=2), gpus=[BUSY_CARD]) == []
    assert ids(look, gpus=[GpuReading(index=0, utilisation=20)]) == []


def test_running_requests_without_one_token_for_a_minute_hang():
    still = [reading(at=float(at), running=2, decode_tokens_per_s=0.0, prefill_tokens_per_s=0.0) for at in (0, 30, 70)]
    assert one(*still).id == FindingId.HANG
    moving = [*still[:2], msgspec.structs.replace(still[2], decode_tokens_per_s=40.0)]
    assert ids(*moving) == []
    assert ids(*still[:2]) == []


def idle(at, held, **values):
    return reading(at=float(at), slots_used=held, slots_total=50, **values)


def test_slots_that_idle_prefixes_keep_are_no_leak():
    pinned = [idle(at, 3, slots_evictable=40) for at in (0, 90, 180, 270)]
    found = one(*pinned)
    assert (found.id, found.severity) == (FindingId.SLOTS_PINNED, Severity.NOTE)
    assert "not a leak" in found.title


def test_slots_held_by_nobody_and_ever_more_of_them_are_a_leak():
    growing = [idle(0, 4), idle(90, 9), idle(180, 14)]
    assert one(*growing).id == FindingId.SLOT_LEAK
    # The gauges keep the last batch's values while the server is idle: the same number proves nothing.
    assert ids(*(idle(at, 14) for at in (0, 90, 180))) == []
    assert ids(*(msgspec.structs.replace(s, stale=("slots_used",)) for s in growing)) == []
    assert ids(*growing[:2]) == []


def test_a_cache_that_gives_up_what_it_computes_thrashes():
    samples = [
        msgspec.structs.replace(sample, evicted_tokens=1000 + 4_000 * n) for n, sample in enumerate(prefilling(0.05))
    ]
    assert one(*samples).flags == {"schedule_policy": "lpm"}
    assert one(*samples, flags={"schedule_policy": "lpm"}).flags == {}
    few = [msgspec.structs.replace(s, evicted_tokens=2_110) for s in samples]
    assert ids(*few) == []


def test_drafts_that_are_never_accepted_cost_for_nothing():
    busy = reading(running=1, decode_tokens_per_s=50.0, acceptance_length=1.0)
    assert one(busy, flags=SPECULATING).flags == dict.fromkeys(SPECULATING)
    assert ids(msgspec.structs.replace(busy, acceptance_length=1.8), flags=SPECULATING) == []
    assert ids(busy) == []


def test_another_server_on_the_card_is_named_and_an_orphan_is_called_one():
    card = GpuReading(
        index=0,
        processes=(
            GpuProcess(pid=10, memory_mib=40_000),
            GpuProcess(pid=2505781, memory_mib=100_998, name="sglang::scheduler_DP0_TP0_EP0"),
            GpuProcess(pid=77, memory_mib=200, name="Xorg"),
        ),
    )
    (found,) = diagnose_cards([card], own={10})
    assert found.id == FindingId.GPU_BUSY
    assert "2505781" in found.evidence[0]
    assert "main process may be gone" in found.remedy
    assert diagnose_cards([card]) == ()
    assert diagnose_cards([card], own={10, 2505781}) == ()


@pytest.mark.parametrize(("free", "severity"), [(500, Severity.WARNING), (3_000, Severity.NOTE), (9_000, None)])
def test_a_card_that_fills_up_while_serving_is_told(free, severity):
    found = diagnose_cards([GpuReading(index=0, free_mib=free)], own={1})
    assert [f.severity for f in found] == ([severity] if severity else [])
    assert diagnose_cards([GpuReading(index=0, free_mib=free)], own=set()) == ()


@pytest.mark.parametrize(
    ("values", "severity"),
    [
        ({"throttled": ("too hot",), "utilisation": 99}, Severity.WARNING),
        ({"throttled": ("power limit",), "utilisation": 99}, Severity.NOTE),
        ({"throttled": (), "utilisation": 99, "temperature_c": 95}, None),
        ({"temperature_c": 91, "utilisation": 99}, Severity.WARNING),
        ({"throttled": ("too hot",), "utilisation": 0}, None),
    ],
)
def test_a_card_that_slows_itself_down_is_told_under_load(values, severity):
    found = diagnose_cards([GpuReading(index=0, **values)])
    assert [f.severity for f in found] == ([severity] if severity else [])
    assert all(f.id is FindingId.GPU_THROTTLED for f in found)


@pytest.mark.parametrize("name", ["27b-48g-r15-full", "dense-small"])
def test_recorded_servers_under_load_raise_nothing_above_a_note_but_what_is_true(name):
    data = json.loads((MEASURED / f"{name}.json").read_text())
    info = json.loads(data["endpoints"]["/server_info"]["body"])
    window = ReadingsWindow()
    idle_page, mid_page = parse_metrics(data["endpoints"]["/metrics"]["body"]), parse_metrics(data["metrics_mid"])
    samples = [
        window.add(100.0, idle_page, json.loads(data["endpoints"]["/v1/loads"]["body"]), info),
        window.add(108.0, mid_page, json.loads(data["loads_mid"]), info),
    ]
    speculates = info.get("speculative_algorithm")
    known = {"speculative_algorithm": speculates, "max_running_requests": 3}
    found = diagnose_readings(Watched(samples, flags=known))
    # Random weights accept no draft.
    warned = [f.id for f in found if f.severity is Severity.WARNING]
    assert warned == ([FindingId.DRAFTS_REJECTED] if speculates else [])


def test_a_start_that_does_not_listen_yet_does_not_hang():
    silent = reading(metrics=Reach.UNREACHABLE, loads=Reach.UNREACHABLE)
    assert ids(silent, facts=BootFacts(reached=Phase.CAPTURING)) == []
    assert ids(silent, facts=BootFacts(reached=Phase.READY)) == [FindingId.HANG]
