"""What a plan tells beside its numbers: where its inputs come from, what is in force, what to know of the version."""

from __future__ import annotations

from typing import Any

from tuner.planner.cells import kv_dtype as kv_dtype_in_force
from tuner.planner.cells import ssm_dtype as ssm_dtype_in_force
from tuner.planner.model import Source
from tuner.planner.pools import requests_per_rank
from tuner.planner.resolve import Resolved
from tuner.planner.strategy import RADIX_OFF

#: Text-only classes of Qwen3.5: 0.5.9 and 0.5.12 find no states in their config (executed), 0.5.17 does (seen).
_TEXT_ONLY, _TEXT_ONLY_SINCE = frozenset({"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}), (0, 5, 17)


def sources_of(r: Resolved) -> dict[str, str]:
    """Where each input comes from, by name; every number that the plan was worked out from is here."""
    inputs = r.inputs
    flag = "recipe"
    default = "SGLang's default"
    log = Source.BOOT_LOG.value
    estimate = Source.ESTIMATE.value
    sources = {"model_shape": inputs.shape.name, "sglang_version": inputs.version_source or "given"}
    if inputs.card_gib is not None:
        sources["card"] = Source.MEASURED.value
    sources |= {
        "free_before": inputs.free_before.source.value,
        "free_after": inputs.free_after.source.value,
        "startup_loss": log if inputs.calibrated_by else "recordings of 0.5.17",
        "context": inputs.context_source.value,
        "graphs": log if inputs.graphs_gib is not None else estimate,
        "runtime": log if inputs.runtime_gib is not None else estimate,
        "bytes_per_token": log if inputs.bytes_per_token else "model shape",
        "mem_fraction_static": flag if r.defaults.fraction_given else default,
    }
    if r.cost is not None:
        sources["bytes_per_slot"] = log if inputs.bytes_per_slot else "model shape"
        sources["mamba_full_memory_ratio"] = flag if r.asked.ratio is not None else default
        if r.asked.slots is not None:
            sources["max_mamba_cache_size"] = flag
    if r.asked.requests is not None or r.asked.speculation is not None:
        sources["max_running_requests"] = flag if r.asked.requests is not None else default
    if r.draft:
        sources["draft_weights"] = inputs.draft_weights.source.value if inputs.draft_weights else estimate
        sources["draft_returned"] = log if inputs.draft_returned_gib is not None else estimate
        sources["draft_layers_in_cell"] = log if inputs.draft_layers_in_cell is not None else "formula"
    return sources


def version_note(r: Resolved) -> str:
    """What to know of a plan by the rule of this version; "" when nothing."""
    notes = [r.rules.note]
    if r.inputs.shape.architecture in _TEXT_ONLY and r.rules.version < _TEXT_ONLY_SINCE:
        notes.append(
            f"SGLang {r.rules.label} does not take {r.inputs.shape.architecture} for a hybrid: "
            "the plan holds for the multimodal wrapper of the same model only."
        )
    speculation = r.asked.speculation
    if speculation is not None and speculation.loads_weights and not r.inputs.draft_weights:
        if not speculation.eagle_like:
            notes.append(
                "The draft's own config is not known: its weights and KV are guessed from the model's own head."
            )
        elif not r.inputs.shape.draft_weights_bytes:
            notes.append("The model's config names no draft head: its weights count as nothing until a boot log tells.")
    return " ".join(note for note in notes if note)


def values_in_force(r: Resolved) -> dict[str, Any]:
    """What SGLang runs with where the flags leave it a choice, by underscore flag name."""
    values: dict[str, Any] = {
        "mem_fraction_static": r.defaults.fraction,
        "chunked_prefill_size": r.prefill_chunk,
        "page_size": r.strategy.page_size,
        "kv_cache_dtype": kv_dtype_in_force(r.inputs.shape, r.asked),
        "disable_radix_cache": not r.strategy.radix,
    }
    if r.cost is not None:
        values |= {
            "mamba_full_memory_ratio": r.defaults.ratio,
            "mamba_ssm_dtype": ssm_dtype_in_force(r.inputs.shape, r.asked),
            "mamba_radix_cache_strategy": r.strategy.name if r.strategy.name != RADIX_OFF else None,
            "disable_overlap_schedule": not r.strategy.overlap,
        }
    if r.asked.speculation is not None:
        values["speculative_num_draft_tokens"] = r.asked.speculation.draft_tokens
        values["max_running_requests"] = requests_per_rank(r.asked, r.rules)
    return {name: value for name, value in values.items() if value is not None}
