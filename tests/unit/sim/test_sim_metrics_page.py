"""The metrics page has the names, types and labels of the recorded ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tuner.metrics import parse_metrics
from tuner.sim.metrics_page import PageFacts, render
from tuner.sim.stats import HttpKey, Stats

MEASURED = Path(__file__).parents[2] / "data" / "measured"
PARTS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
FACTS = PageFacts(
    model_name="m",
    kv_tokens=262_294,
    page_size=1,
    context_len=262_144,
    weight_gib=27.535,
    kv_gib=8.005,
    graphs_gib=dict.fromkeys(PARTS, 0.1),
    available_gib=3.2,
    startup_s={"load_weight": 0.4, "kv_cache_allocation": 0.4, "scheduler_e2e": 38.0, "tokenizer_e2e": 55.0},
    graph_s=dict.fromkeys(PARTS, 1.0),
    draft_steps=1,
    draft_tokens=2,
    scheduler_pid=1999,
    cpu_seconds=1.5,
)


def busy() -> Stats:
    """Counters of a server that has done everything once."""
    stats = Stats()
    stats.finished(streaming=True, prompt=8003, cached=8000, output=8, ttft_s=0.8, e2e_s=1.0)
    stats.finished(streaming=False, prompt=25, cached=0, output=48, ttft_s=83.0, e2e_s=84.0)
    for mode in ("prefill_compute", "prefill_cache", "decode"):
        stats.realtime_tokens[mode] += 10
    for mode in ("prefill_cuda_graph", "decode_cuda_graph", "prefill_none"):
        stats.passes[mode] += 1
    for stage in ("request_process", "prefill_forward", "chunked_prefill"):
        stats.stage(stage, 0.5)
    stats.itl.observe(0.02, 5)
    stats.queue_time.observe(0.001)
    stats.loads_seconds.observe(0.0002)
    stats.verify_calls = 7
    key = HttpKey("/generate", "POST")
    stats.http_requests[key] += 1
    stats.http_active[key] += 0
    stats.http_responses[key, 200] += 1
    stats.gauges.decoded = True
    return stats


def series(text: str) -> set[tuple[str, str, tuple[str, ...]]]:
    return {
        (family.name, family.type, tuple(sorted(sample.labels)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_recorded_series_is_there_with_its_type_and_labels() -> None:
    recorded = json.loads((MEASURED / "27b-48g-r15-full.json").read_text(encoding="utf-8"))["metrics_end"]
    assert series(recorded) - series(render(busy(), FACTS)) == set()


def test_no_series_has_a_name_that_no_recording_knows() -> None:
    known: set[str] = set()
    for path in MEASURED.glob("*.json"):
        scrape = json.loads(path.read_text(encoding="utf-8")).get("metrics_end")
        if isinstance(scrape, str):
            known |= {name for name, _, _ in series(scrape)}
    assert {name for name, _, _ in series(render(busy(), FACTS))} <= known


def test_buckets_are_the_recorded_ones() -> None:
    def buckets(text: str) -> dict[str, set[float]]:
        found: dict[str, set[float]] = {}
        for family in text_string_to_metric_families(text):
            if family.type == "histogram":
                bounds = {float(s.labels["le"]) for s in family.samples if "le" in s.labels}
                found[family.name] = {round(bound, 9) for bound in bounds}
        return found

    recorded = json.loads((MEASURED / "27b-48g-r15-full.json").read_text(encoding="utf-8"))["metrics_end"]
    assert buckets(render(busy(), FACTS)) == buckets(recorded)


def test_what_never_happened_is_absent_rather_than_zero() -> None:
    names = {name for name, _, _ in series(render(Stats(), FACTS))}
    for absent in ("cached_tokens", "num_requests", "realtime_tokens", "spec_verify_calls", "evicted_tokens"):
        assert f"sglang:{absent}" not in names
    assert "sglang:mamba_usage" in names


def test_the_tuner_reads_the_page() -> None:
    stats = busy()
    stats.gauges.slots_used, stats.gauges.slots_free, stats.gauges.slots_evictable = 12, 42, 3
    text = render(stats, FACTS)
    parse_metrics(text)
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["sglang:mamba_usage"] == pytest.approx(12 / 57)
    assert values["sglang:token_usage"] == 0.21
    assert math.isnan(values["sglang:fwd_occupancy"])
