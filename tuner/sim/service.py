"""What the endpoints know of this server."""

from __future__ import annotations

import asyncio
import os
import time
from enum import StrEnum
from typing import Any

import msgspec

from tuner.sim.answers import Parsers, Piece, PieceKind
from tuner.sim.bootlog import Timings
from tuner.sim.engine import Engine
from tuner.sim.faults import Faults
from tuner.sim.flags import VERSION
from tuner.sim.journal import say
from tuner.sim.metrics_page import PageFacts
from tuner.sim.model import Model
from tuner.sim.pace import Pace
from tuner.sim.requests import Request, RequestKind
from tuner.sim.scheduler import Scheduler
from tuner.sim.sizing import Pools, Setup
from tuner.sim.stats import Stats

#: Seconds after which a health call gives up (``SGLANG_HEALTH_CHECK_TIMEOUT``).
HEALTH_TIMEOUT_S = 20
_ONE_TOKEN = (Piece("a", PieceKind.CONTENT),)


class Status(StrEnum):
    """What /health goes by."""

    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What the start left behind for serving; GiB and seconds."""

    values: dict[str, Any]
    model: Model
    setup: Setup
    pools: Pools
    card_name: str
    weight_gib: float
    graphs_gib: dict[str, float]
    available_gib: float
    timings: Timings
    parsers: Parsers
    default_template: dict[str, Any]
    scheduler_pid: int


class Service:
    """The state behind the endpoints."""

    def __init__(self, built: Built, engine: Engine, stats: Stats, pace: Pace, faults: Faults) -> None:
        self.built = built
        self.engine = engine
        self.stats = stats
        self.pace = pace
        self.faults = faults
        self.status = Status.STARTING

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler behind the engine."""
        return self.engine.scheduler

    @property
    def model_name(self) -> str:
        """Name under which clients ask for the model."""
        return str(self.built.values.get("served_model_name") or self.built.values["model_path"])

    @property
    def api_key(self) -> str | None:
        """Key for all routes but /health and /metrics."""
        return self.built.values.get("api_key")

    @property
    def admin_key(self) -> str | None:
        """Key for administrative routes."""
        return self.built.values.get("admin_api_key")

    @property
    def metrics_on(self) -> bool:
        """Whether /metrics is there."""
        return bool(self.built.values.get("enable_metrics"))

    async def health(self) -> int:
        """The status of /health: a token is generated, and that takes a second."""
        if self.status is not Status.UP:
            return 503
        began = time.time()
        request = Request([0], 1, lambda _: _ONE_TOKEN, kind=RequestKind.HEALTH)
        self.engine.submit(request)
        await self.pace.serve(1.0)
        deadline = asyncio.get_running_loop().time() + max(1.0, self.pace.serve_s(HEALTH_TIMEOUT_S))
        while not request.finished:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                started = time.strftime("%H:%M:%S", time.localtime(began))
                say(
                    "Health check failed. Server couldn't get a response from detokenizer for last "
                    f"{HEALTH_TIMEOUT_S} seconds. tic start time: {started}. last_heartbeat time: {started}"
                )
                self.engine.abort(request)
                return 503
            request.changed.clear()
            try:
                await asyncio.wait_for(request.changed.wait(), left)
            except TimeoutError:
                continue
        return 200

    def page_facts(self) -> PageFacts:
        """The unchanging part of /metrics."""
        built = self.built
        startup = {
            "load_weight": built.timings.load_weight,
            "kv_cache_allocation": built.timings.kv_cache_allocation,
            "scheduler_e2e": built.timings.scheduler_e2e,
            "tokenizer_e2e": built.timings.tokenizer_e2e,
        }
        used = os.times()
        return PageFacts(
            model_name=self.model_name,
            kv_tokens=built.pools.plan.kv_tokens,
            page_size=built.pools.kept_states.page_size,
            context_len=built.pools.plan.context_len,
            weight_gib=built.weight_gib,
            kv_gib=built.pools.kv_gib,
            graphs_gib=built.graphs_gib,
            available_gib=built.available_gib,
            startup_s=startup,
            graph_s=built.timings.cuda_graph,
            draft_steps=built.setup.draft_steps,
            draft_tokens=built.setup.draft_tokens,
            scheduler_pid=built.scheduler_pid,
            cpu_seconds=used.user + used.system,
        )

    def loads(self) -> dict[str, Any]:
        """The answer of /v1/loads."""
        scheduler, stats, built = self.scheduler, self.stats, self.built
        gauges = stats.gauges
        waiting = sum(len(r.prompt) for r in scheduler.waiting)
        load: dict[str, Any] = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_waiting_uncached_tokens": waiting,
            "num_used_tokens": gauges.kv_used,
            "num_total_tokens": gauges.kv_used + waiting,
            "num_active_tokens": gauges.kv_used + waiting,
            "max_total_num_tokens": built.pools.plan.kv_tokens,
            "max_running_requests": built.pools.plan.max_running_requests,
            "token_usage": round(gauges.kv_used / built.pools.plan.kv_tokens, 4),
            "gen_throughput": round(gauges.throughput, 2),
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": stats.uncached_prefilled,
            "total_prefill_busy_us": stats.prefill_busy_us,
            "decode_moments": None,
            "memory": {
                "weight_gb": round(built.weight_gib, 3),
                "kv_cache_gb": round(built.pools.kv_gib, 3),
                "graph_gb": round(sum(v for k, v in built.graphs_gib.items() if not k.startswith("draft")), 3),
                "token_capacity": built.pools.plan.kv_tokens,
            },
        }
        if gauges.decoded and built.setup.speculative:
            load["speculative"] = {"accept_length": gauges.accept_length, "accept_rate": gauges.accept_rate}
        load["disaggregation"] = {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        }
        load["queues"] = {
            "waiting": len(scheduler.waiting),
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        }
        return {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "version": VERSION,
            "accelerator": built.card_name,
            "num_accelerators": 1,
            "loads": [load],
        }

    def server_info(self) -> dict[str, Any]:
        """The answer of /server_info; like the real one it shows keys in clear to whoever may ask."""
        built, plan, gauges = self.built, self.built.pools.plan, self.stats.gauges
        startup = msgspec.to_builtins(built.timings)
        internal = dict(built.values) | {
            "max_mamba_cache_size": plan.mamba_slots or None,
            "pp_max_micro_batch_size": plan.max_running_requests,
            "last_gen_throughput": gauges.last_throughput,
            "memory_usage": {
                "weight": round(built.weight_gib, 3),
                "kvcache": round(built.pools.kv_gib, 3),
                "startup_available": round(built.available_gib, 3),
                "token_capacity": plan.kv_tokens,
                "token_capacity_swa": None,
                "graph": {part: round(gib, 3) for part, gib in built.graphs_gib.items()},
            },
            "startup_time": startup,
            "effective_max_running_requests_per_dp": plan.max_running_requests,
        }
        if gauges.decoded and built.setup.speculative:
            internal["avg_spec_accept_length"] = gauges.accept_length
        return dict(built.values) | {
            "simulated": True,
            "status": "ready",
            "max_total_num_tokens": plan.kv_tokens,
            "max_req_input_len": self.scheduler.limits.longest_request(plan.kv_tokens),
            "startup_time": startup,
            "internal_states": [internal],
            "version": VERSION,
            "kv_events": None,
        }

    def model_info(self) -> dict[str, Any]:
        """The answer of /model_info."""
        shape = self.built.model.shape
        return {
            "simulated": True,
            "model_path": self.built.values["model_path"],
            "tokenizer_path": self.built.values["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": shape.multimodal,
            "has_audio_understanding": False,
            "model_type": shape.model_type,
            "architectures": [shape.architecture],
        }
