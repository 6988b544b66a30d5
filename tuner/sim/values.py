"""Server arguments as SGLang shows them: every flag of 0.5.17 with its default, and what was resolved."""

from __future__ import annotations

import random
from typing import Any

from tuner.flags.catalogue import catalogue, is_in
from tuner.planner.forward import plan_of
from tuner.sim.flags import VERSION, Options
from tuner.sim.model import Model
from tuner.sim.sizing import Setup


def server_args(flags: dict[str, Any], model: Model, setup: Setup, options: Options) -> dict[str, Any]:
    """Names and values of ``server_args=`` and ``/server_info``."""
    infos = [info for info in catalogue().values() if is_in(info, VERSION) and info.replaced_by is None]
    values = {info.dest or info.name: flags.get(info.name, info.default) for info in infos}
    resolved, defaults = setup.resolved, setup.resolved.defaults
    algorithm = flags.get("speculative_algorithm")
    in_force: dict[str, Any] = {
        "model_path": model.path,
        "tokenizer_path": flags.get("tokenizer_path") or model.path,
        "served_model_name": flags.get("served_model_name") or model.path,
        "host": flags.get("host", "127.0.0.1"),
        "port": int(flags.get("port", 30000)),
        "kv_cache_dtype": flags.get("kv_cache_dtype", "auto"),
        "max_prefill_tokens": resolved.asked.max_prefill_tokens,
        "max_running_requests": resolved.asked.requests,
        "attention_backend": flags.get("attention_backend", "triton"),
        "random_seed": random.Random(options.seed).randrange(2**30),
        "speculative_algorithm": "EAGLE" if algorithm == "NEXTN" else algorithm,
        "mamba_full_memory_ratio": defaults.ratio,
        "cuda_graph_config": {
            "decode": {
                "backend": "full" if defaults.sizes.decode else "disabled",
                "max_bs": defaults.decode_max_bs,
                "bs": list(defaults.sizes.decode),
            },
            "prefill": {
                "backend": "breakable" if defaults.sizes.prefill else "disabled",
                "max_bs": defaults.chunked_prefill_size,
                "bs": list(defaults.sizes.prefill),
            },
        },
    }
    if algorithm:
        in_force["speculative_num_steps"] = setup.draft_steps
    shown = (
        "mem_fraction_static",
        "chunked_prefill_size",
        "page_size",
        "disable_overlap_schedule",
        "speculative_num_draft_tokens",
        "max_running_requests",
    )
    planned = plan_of(resolved).in_force
    return values | in_force | {name: planned[name] for name in shown if name in planned}
