"""The ``server_args=`` line: what the server was asked for, after its own defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.redact import HIDDEN

#: What bears on pools, speed or a diagnosis. Anything else in that line (400 fields on 0.5.17) is not kept.
INTERESTING = frozenset(
    {
        "model_path",
        "tokenizer_path",
        "served_model_name",
        "trust_remote_code",
        "load_format",
        "dtype",
        "quantization",
        "context_length",
        "host",
        "port",
        "tp_size",
        "pp_size",
        "dp_size",
        "ep_size",
        "nnodes",
        "base_gpu_id",
        "device",
        "skip_server_warmup",
        "mem_fraction_static",
        "kv_cache_dtype",
        "max_running_requests",
        "max_total_tokens",
        "chunked_prefill_size",
        "max_prefill_tokens",
        "schedule_policy",
        "page_size",
        "disable_radix_cache",
        "disable_overlap_schedule",
        "enable_mixed_chunk",
        "enable_dp_attention",
        "enable_unified_memory",
        "enable_hierarchical_cache",
        "hicache_ratio",
        "hicache_size",
        "hicache_write_policy",
        "cpu_offload_gb",
        "mamba_ssm_dtype",
        "mamba_full_memory_ratio",
        "max_mamba_cache_size",
        "mamba_radix_cache_strategy",
        "mamba_scheduler_strategy",
        "mamba_track_interval",
        "mamba_max_states_per_path",
        "enable_int8_mamba_checkpoint",
        "enable_linear_replayssm",
        "enable_linear_replayssm_spec",
        "linear_attn_backend",
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_draft_model_path",
        "attention_backend",
        "decode_attention_backend",
        "prefill_attention_backend",
        "moe_runner_backend",
        "sampling_backend",
        "disable_cuda_graph",
        "cuda_graph_max_bs",
        "cuda_graph_max_bs_decode",
        "cuda_graph_backend_decode",
        "cuda_graph_backend_prefill",
        "disable_prefill_cuda_graph",
        "enable_torch_compile",
        "enable_metrics",
        "enable_cache_report",
        "reasoning_parser",
        "tool_call_parser",
        "disaggregation_mode",
        "disable_custom_all_reduce",
        "allow_auto_truncate",
    }
)

_ECHO = re.compile(r"server_args=(?P<kind>ServerArgs\(|\{)(?P<fields>.*)")
_FIELD = re.compile(r"\s*['\"]?(?P<name>[A-Za-z_]\w*)['\"]?\s*[=:]\s*(?P<value>.*)", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


def is_echo(text: str) -> re.Match[str] | None:
    """The match of a ``server_args=`` line (``kind`` tells the form: ``ServerArgs(`` up to 0.5.22, ``{`` later)."""
    return _ECHO.search(text)


def read_arguments(fields: str) -> dict[str, str]:
    """Values that matter, as text without quotes; those that are ``None`` or hidden are left out.

    ``fields`` is what stands between the outer brackets, possibly cut short.
    """
    found: dict[str, str] = {}
    for item in _split_items(fields):
        match = _FIELD.match(item)
        if match and match["name"] in INTERESTING:
            value = match["value"].strip().rstrip(",")
            if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
                value = value[1:-1]
            if value not in ("None", HIDDEN):
                found[match["name"]] = value
    return found


def _split_items(fields: str) -> Iterator[str]:
    """Cut at the commas that stand in no quotes and no brackets, up to the closing outer bracket.

    Not Python's own parser: some values print as ``<Kind.NAME: 0>``, and the line may be cut.
    """
    depth = 0
    quote = ""
    escaped = False
    start = 0
    for i, char in enumerate(fields):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            if depth == 0:
                yield fields[start:i]
                return
            depth -= 1
        elif char == "," and depth == 0:
            yield fields[start:i]
            start = i + 1
    yield fields[start:]
