"""What a server really runs with, told from its own answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.serverlog.model import BootFacts

#: Values worth keeping beside the asked ones: the server resolves or changes them on its own.
_ALWAYS = (
    "mem_fraction_static",
    "mamba_full_memory_ratio",
    "max_mamba_cache_size",
    "max_running_requests",
    "max_total_num_tokens",
    "max_req_input_len",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "context_length",
    "page_size",
    "kv_cache_dtype",
    "mamba_ssm_dtype",
    "mamba_radix_cache_strategy",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "schedule_policy",
    "attention_backend",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
#: Paths, names and secrets: compared by nobody, or not to be kept.
_NEVER = frozenset({"api_key", "admin_api_key", "host", "model_path", "tokenizer_path", "served_model_name"})


def effective_values(asked: Mapping[str, Any], info: Mapping[str, Any], facts: BootFacts | None) -> dict[str, Any]:
    """Values in effect by flag name, from ``/server_info`` and, where it only echoes the request, from the log.

    ``internal_states[0]`` holds the scheduler's own copy (0.5.17: the resolved ``max_mamba_cache_size``) and
    ``effective_max_running_requests_per_dp``; the top level echoes the command line.
    """
    states = info.get("internal_states")
    scheduler: Mapping[str, Any] = states[0] if isinstance(states, list) and states and _is_map(states[0]) else {}
    values: dict[str, Any] = {}
    for name in dict.fromkeys((*_ALWAYS, *asked)):
        if name in _NEVER:
            continue
        for answer in (scheduler, info):
            if answer.get(name) is not None:
                values[name] = answer[name]
                break
    admitted = scheduler.get("effective_max_running_requests_per_dp")
    if admitted is None and facts is not None:
        admitted = facts.max_running_requests
    if admitted is not None:
        values["max_running_requests"] = admitted
    if facts is not None and facts.mamba_slots is not None:
        values["max_mamba_cache_size"] = facts.mamba_slots
    if facts is not None and facts.kv_tokens is not None:
        values["max_total_num_tokens"] = facts.kv_tokens
    if facts is not None and facts.chunked_prefill_size is not None:
        values["chunked_prefill_size"] = facts.chunked_prefill_size
    return values


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)
