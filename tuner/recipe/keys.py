"""What the keys of the files mean: which are flags, which only look so, and where each flag stands.

The two layouts come from the field: ``[server] [memory] [cache] [speculative] [pd]`` with a ``settings.json`` of
``runtime``, ``mamba``, ``logging`` and ``api``; and ``[server] [memory] [scheduling] [speculative] [parsers]
[observability]`` with short names in ``[speculative]``. A flag is understood in any of these sections.
"""

from __future__ import annotations

import msgspec

from tuner.flags import FlagInfo, lookup, suggest

#: Sections that hold flags, in the order they are written.
FLAG_SECTIONS = (
    "server",
    "memory",
    "cache",
    "scheduling",
    "runtime",
    "mamba",
    "speculative",
    "parsers",
    "pd",
    "observability",
    "logging",
    "flags",
)
ENVIRONMENT_SECTIONS = ("environment", "env")
API_SECTION = "api"
TUNER_SECTION = "tuner"
KNOWN_SECTIONS = (*FLAG_SECTIONS, API_SECTION, *ENVIRONMENT_SECTIONS, TUNER_SECTION)

#: Sections whose keys may leave out the beginning of the flag's name.
PREFIXES = {"speculative": "speculative_", "mamba": "mamba_", "logging": "log_", "pd": "disaggregation_"}

#: Keys that are no flags but mean exactly one.
_SAME_AS = {
    "radix_cache_page_size": "page_size",
    "speculative_topk": "speculative_eagle_topk",
    "state_dtype": "mamba_ssm_dtype",
    "mamba_state_dtype": "mamba_ssm_dtype",
}
#: Keys that say the opposite of a switch: true leaves the switch out.
_OPPOSITE_OF = {"enable_prefix_caching": "disable_radix_cache"}


class NotAFlag(msgspec.Struct, frozen=True):
    """A key that nothing in SGLang reads: what it would be, why it has no effect, the nearest real flag."""

    why: str
    nearest: str | None = None


_NOT_FLAGS = {
    "enable_elastic_memory_pool": NotAFlag(
        "SGLang has no such flag; enable_unified_memory (0.5.17 and later) shares one pool between KV and states, "
        "but only with Triton attention and without speculation, so it is not switched on for you.",
        "enable_unified_memory",
    ),
    "enable_dual_lru_eviction": NotAFlag(
        "SGLang has no such flag; its prefix cache always keeps separate eviction lists for KV and states.",
        "radix_eviction_policy",
    ),
    "enable_mamba_state_sandbox": NotAFlag(
        "SGLang has no such flag; speculation always gives every draft token a state of its own."
    ),
    "enable_pd_disaggregation": NotAFlag(
        "SGLang has no such flag; a server takes part in prefill-decode disaggregation only with "
        "disaggregation_mode prefill or decode.",
        "disaggregation_mode",
    ),
    "mamba_state_transfer_mode": NotAFlag(
        "SGLang has no such flag; states always move whole, by the backend of disaggregation_transfer_backend.",
        "disaggregation_transfer_backend",
    ),
    "state_snapshot_on_match": NotAFlag(
        "SGLang has no such flag; when states are kept follows from mamba_radix_cache_strategy and "
        "mamba_track_interval.",
        "mamba_radix_cache_strategy",
    ),
    "state_copy_on_write": NotAFlag(
        "SGLang has no such flag; a matched state is always copied into the request's own slot.",
    ),
    "log_mamba_state_stats": NotAFlag(
        "SGLang has no such flag; state figures are in every batch line of the log, and in /metrics with "
        "enable_metrics.",
        "enable_metrics",
    ),
    "enable_mamba_extra_buffer": NotAFlag(
        "This is a value that SGLang derives, not a flag; it follows from mamba_radix_cache_strategy.",
        "mamba_radix_cache_strategy",
    ),
    "settings": NotAFlag(
        "SGLang reads no settings file; the tuner does, from a settings.json beside the config.toml.", "config"
    ),
}


class Meaning(msgspec.Struct, frozen=True):
    """A key read as a flag; ``opposite`` when true leaves the switch out and false sets it."""

    info: FlagInfo
    opposite: bool = False


def meaning(section: str, key: str) -> Meaning | NotAFlag:
    """What ``key`` means in ``section`` (empty: above all sections)."""
    plain = key.strip().replace("-", "_")
    prefix = PREFIXES.get(section, "")
    for name in (plain, prefix + plain):
        for table, opposite in ((_SAME_AS, False), (_OPPOSITE_OF, True)):
            if name in table:
                info = lookup(table[name])
                if info is not None:
                    return Meaning(info, opposite)
        info = lookup(name)
        if info is not None:
            return Meaning(info)
    if plain in _NOT_FLAGS:
        return _NOT_FLAGS[plain]
    if plain == "python":
        return NotAFlag("The interpreter is read from [server] python only.", "python")
    near = suggest(plain) or (suggest(prefix + plain) if prefix else None)
    return NotAFlag(
        "Neither SGLang nor the tuner knows this key" + (f"; perhaps {near} was meant." if near else "."), near
    )


def short_key(info: FlagInfo, section: str) -> str:
    """How a flag is written in its section: without the section's prefix where that stays clear."""
    prefix = PREFIXES.get(section, "")
    short = info.name.removeprefix(prefix)
    if not prefix or short == info.name:
        return info.name
    back = meaning(section, short)
    return short if isinstance(back, Meaning) and back.info == info and not back.opposite else info.name
