"""The ``/metrics`` page of SGLang 0.5.17: names, labels and what is absent until it first happens, as recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner.sim.stats import Histogram, Stats

_ROUTING_BOUNDS = ("0", "1", "2", "3", "5", "7", "10", "20", "50", "100", "200", "+Inf")


class PageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change after the start. GiB and seconds."""

    model_name: str
    kv_tokens: int
    page_size: int
    context_len: int
    weight_gib: float
    kv_gib: float
    graphs_gib: dict[str, float]
    available_gib: float
    startup_s: dict[str, float]
    graph_s: dict[str, float]
    draft_steps: int
    draft_tokens: int
    scheduler_pid: int
    cpu_seconds: float = 0.0


class _Page(Collector):
    def __init__(self, stats: Stats, facts: PageFacts) -> None:
        self._stats = stats
        self._facts = facts
        self._tokenizer = {"engine_type": "unified", "model_name": facts.model_name}
        self._scheduler = self._tokenizer | {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}

    def collect(self) -> Iterator[Metric]:
        yield from self._http()
        yield from self._static()
        yield from self._live()
        yield from self._counted()
        yield from self._histograms()

    def _gauge(self, name: str, text: str, *values: tuple[Mapping[str, str], float]) -> Metric:
        family = GaugeMetricFamily(f"sglang:{name}", text, labels=sorted(values[0][0]))
        for labels, value in values:
            family.add_metric([labels[key] for key in sorted(labels)], value)
        return family

    def _one(self, name: str, text: str, value: float) -> Metric:
        return self._gauge(name, text, (self._scheduler, value))

    def _counter(self, name: str, text: str, *values: tuple[Mapping[str, str], float]) -> Iterator[Metric]:
        if not values:
            return
        family = CounterMetricFamily(f"sglang:{name}", text, labels=sorted(values[0][0]))
        for labels, value in values:
            family.add_metric([labels[key] for key in sorted(labels)], value)
        yield family

    def _histogram(self, name: str, text: str, *values: tuple[Mapping[str, str], Histogram]) -> Iterator[Metric]:
        filled = [(labels, histogram) for labels, histogram in values if histogram.count]
        if not filled:
            return
        family = HistogramMetricFamily(f"sglang:{name}", text, labels=sorted(filled[0][0]))
        for labels, histogram in filled:
            cumulative, buckets = 0, []
            for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
                cumulative += count
                buckets.append(("+Inf" if bound == math.inf else str(bound), cumulative))
            family.add_metric([labels[key] for key in sorted(labels)], buckets, histogram.total)
        yield family

    def _http(self) -> Iterator[Metric]:
        stats = self._stats
        yield self._gauge("routing_keys_active", "Number of unique routing keys with active requests", ({}, 0.0))
        if stats.http_active:
            yield self._gauge(
                "http_requests_active",
                "Number of currently active HTTP requests",
                *(({"endpoint": k.endpoint, "method": k.method}, n) for k, n in stats.http_active.items()),
            )

    def _static(self) -> Iterator[Metric]:
        facts = self._facts
        one = self._one
        yield one("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", facts.kv_tokens)
        yield one("weight_memory_usage_gb", "Memory used by model weights in GB.", facts.weight_gib)
        yield one("kv_cache_memory_usage_gb", "Memory used by the KV cache pools in GB.", facts.kv_gib)
        yield self._gauge(
            "graph_memory_usage_gb",
            "Memory used by captured device graphs in GB.",
            *((self._scheduler | {"phase": phase}, gib) for phase, gib in facts.graphs_gib.items()),
        )
        yield one("page_size", "KV cache page size in tokens.", facts.page_size)
        yield one("num_pages", "Number of KV cache pages.", facts.kv_tokens // facts.page_size)
        yield one("context_len", "Maximum context length.", facts.context_len)
        yield one("startup_available_gpu_memory_gb", "Available GPU memory in GB at startup.", facts.available_gib)
        yield self._gauge(
            "startup_time_seconds",
            "Engine startup duration by phase in seconds.",
            *((self._tokenizer | {"phase": phase}, s) for phase, s in facts.startup_s.items()),
        )
        yield self._gauge(
            "startup_cuda_graph_time_seconds",
            "CUDA graph capture duration by phase in seconds.",
            *((self._tokenizer | {"phase": phase}, s) for phase, s in facts.graph_s.items()),
        )

    def _live(self) -> Iterator[Metric]:
        facts, gauges = self._facts, self._stats.gauges
        kv = gauges.kv_used / facts.kv_tokens
        slots = gauges.slots_used + gauges.slots_free + gauges.slots_evictable
        mamba = gauges.slots_used / slots if slots else 0.0
        steps = facts.draft_steps if gauges.decoded else 0
        drafts = facts.draft_tokens if gauges.decoded else 0
        for name, text, value in (
            ("num_running_reqs", "The number of running requests.", gauges.running),
            ("num_queue_reqs", "The number of requests in the waiting queue.", gauges.queued),
            ("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0),
            ("gen_throughput", "The generation throughput (token/s).", gauges.throughput),
            ("cache_hit_rate", "The prefix cache hit rate.", 0),
            ("decode_sum_seq_lens", "The sum of all sequence lengths in decode.", gauges.sequence_tokens),
            ("token_usage", "The token usage.", round(max(kv, mamba), 2)),
            ("full_token_usage", "The token usage for full attention layers.", kv),
            ("swa_token_usage", "The token usage for SWA layers.", 0),
            ("mamba_usage", "The token usage for Mamba layers.", mamba),
            ("num_used_tokens", "The number of used tokens.", gauges.kv_used),
            ("kv_available_tokens", "Number of free token slots in the KV cache pool.", gauges.kv_free),
            (
                "kv_evictable_tokens",
                "Number of evictable (radix-cached) token slots in the KV cache pool.",
                gauges.kv_evictable,
            ),
            ("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", gauges.kv_used),
            ("swa_available_tokens", "Number of free token slots in the SWA pool (hybrid-SWA only).", 0),
            ("swa_evictable_tokens", "Number of evictable (radix-cached) token slots in the SWA pool.", 0),
            ("swa_used_tokens", "Number of actively used token slots in the SWA pool.", 0),
            (
                "mamba_available_tokens",
                "Number of free state slots in the mamba SSM pool (hybrid-SSM only).",
                gauges.slots_free,
            ),
            (
                "mamba_evictable_tokens",
                "Number of evictable (radix-cached) state slots in the mamba SSM pool.",
                gauges.slots_evictable,
            ),
            (
                "mamba_used_tokens",
                "Number of actively used state slots in the mamba SSM pool.",
                gauges.slots_used,
            ),
            (
                "spec_accept_length",
                "Mean acceptance length of speculative decoding (accepted drafts + bonus token per forward).",
                gauges.accept_length,
            ),
            (
                "spec_accept_rate",
                "Speculative acceptance rate (`accepted drafts / proposed drafts` in batch).",
                gauges.accept_rate,
            ),
            ("spec_cap_length", "Mean DSpark confidence-scheduled verify window per verify step.", 0),
            ("spec_block_accept_length", "Mean uncapped full-block accept length per verify step.", 0),
            ("spec_num_steps", "Currently active speculative_num_steps.", steps),
            ("spec_num_draft_tokens", "Currently active speculative_num_draft_tokens.", drafts),
            ("num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue.", 0),
            ("num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue.", 0),
            ("num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue.", 0),
            ("num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue.", 0),
            ("pending_prealloc_token_usage", "The token usage for pending preallocated tokens.", 0),
            ("utilization", "The utilization.", 0),
            ("new_token_ratio", "The new token ratio.", 0.3),
            ("fwd_occupancy", "Forward occupancy.", math.nan),
            ("is_cuda_graph", "Whether the batch is using CUDA graph.", 0),
            ("num_unique_running_routing_keys", "Number of unique routing keys in running batch.", 0),
        ):
            yield self._one(name, text, value)
        for name in ("routing_key_running_req_count", "routing_key_all_req_count"):
            yield self._gauge(
                name,
                "Distribution of routing keys by request count (gt < count <= le).",
                *((self._scheduler | {"gt": low, "le": high}, 0.0) for low, high in pairwise(_ROUTING_BOUNDS)),
            )
        for name, text in (
            ("num_retracted_reqs", "The number of retracted requests."),
            ("num_paused_reqs", "The number of paused requests by async weight sync."),
        ):
            yield self._gauge(name, text, (self._scheduler | {"pid": str(facts.scheduler_pid)}, 0.0))

    def _counted(self) -> Iterator[Metric]:
        stats, scheduler, tokenizer = self._stats, self._scheduler, self._tokenizer
        yield from self._counter(
            "cuda_graph_passes",
            "Total number of forward passes categorized by CUDA graph.",
            *((scheduler | {"mode": mode}, n) for mode, n in stats.passes.items()),
        )
        yield from self._counter(
            "realtime_tokens",
            "Total number of tokens processed (updated on each log interval). "
            "mode: prefill_compute, prefill_cache, decode.",
            *((scheduler | {"mode": mode}, n) for mode, n in stats.realtime_tokens.items()),
        )
        yield from self._counter(
            "process_cpu_seconds",
            "Total CPU time consumed by this process (user + system)",
            ({"component": "tokenizer"}, self._facts.cpu_seconds),
        )
        yield from self._counter(
            "http_requests",
            "Total number of HTTP requests by endpoint and method",
            *(({"endpoint": k.endpoint, "method": k.method}, n) for k, n in stats.http_requests.items()),
        )
        yield from self._counter(
            "http_responses",
            "Total number of HTTP responses by endpoint and status code",
            *(
                ({"endpoint": k.endpoint, "method": k.method, "status_code": str(status)}, n)
                for (k, status), n in stats.http_responses.items()
            ),
        )
        for name, text, counts in (
            ("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", stats.generated_tokens),
            ("num_requests", "Number of requests processed.", stats.requests),
        ):
            yield from self._counter(
                name, text, *((tokenizer | {"is_streaming": streaming}, n) for streaming, n in counts.items())
            )
        for name, text, labels, value in (
            (
                "spec_verify_calls",
                "Number of speculative decoding verification calls.",
                tokenizer,
                stats.verify_calls,
            ),
            (
                "cached_tokens",
                "Number of cached prompt tokens by source (device/host/storage).",
                tokenizer | {"cache_source": "device"},
                stats.cached_tokens,
            ),
            ("num_aborted_requests", "Number of requests aborted.", tokenizer, stats.aborted),
            ("evicted_tokens", "The number of evicted tokens.", scheduler, stats.evicted_tokens),
            ("num_retracted_requests", "Number of retracted requests.", scheduler, stats.retracted_requests),
            (
                "num_retracted_input_tokens",
                "Number of retracted input tokens.",
                scheduler,
                stats.retracted_input_tokens,
            ),
            (
                "num_retracted_output_tokens",
                "Number of retracted output tokens.",
                scheduler,
                stats.retracted_output_tokens,
            ),
        ):
            if value:
                yield from self._counter(name, text, (labels, value))

    def _histograms(self) -> Iterator[Metric]:
        stats, scheduler, tokenizer = self._stats, self._scheduler, self._tokenizer
        for name, text, by_streaming in (
            ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", stats.ttft),
            ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", stats.e2e),
        ):
            yield from self._histogram(
                name, text, *((tokenizer | {"is_streaming": s}, histogram) for s, histogram in by_streaming.items())
            )
        for name, text, labels, histogram in (
            ("prompt_tokens_histogram", "Histogram of prompt token length.", tokenizer, stats.prompt_lengths),
            (
                "uncached_prompt_tokens_histogram",
                "Histogram of uncached (compute) prompt token length.",
                tokenizer,
                stats.uncached_lengths,
            ),
            (
                "generation_tokens_histogram",
                "Histogram of generation token length.",
                tokenizer,
                stats.output_lengths,
            ),
            (
                "get_loads_duration_seconds",
                "Time spent serving /v1/loads requests (seconds).",
                tokenizer,
                stats.loads_seconds,
            ),
            ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", tokenizer, stats.itl),
            ("queue_time_seconds", "Histogram of queueing time in seconds.", scheduler, stats.queue_time),
            (
                "eviction_duration_seconds",
                "Time taken to evict memory from GPU to CPU in seconds.",
                scheduler,
                stats.evictions,
            ),
        ):
            yield from self._histogram(name, text, (labels, histogram))
        yield from self._histogram(
            "per_stage_req_latency_seconds",
            "The latency of each stage of requests.",
            *((scheduler | {"stage": stage}, histogram) for stage, histogram in stats.stages.items()),
        )


def render(stats: Stats, facts: PageFacts) -> str:
    """The page as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(stats, facts))
    return generate_latest(registry).decode("utf-8")
