"""Which knobs a model has, what each can be set to, and the flags a setting means. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.flags import catalogue, lookup
from tuner.modelcard import Family, ModelShape
from tuner.planner.model import Plan, PlanInputs
from tuner.ui.widgets.choice import Option
from tuner.ui.widgets.scale import Scale
from tuner.ui.widgets.slider import fine

AUTO = "auto"
SPECULATION = "speculation"
#: Flags that the speculation knob moves together.
SPECULATIVE_FLAGS = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)


class SliderKnob(msgspec.Struct, frozen=True, kw_only=True):
    """A number: flag name, label, its scale and what it does in one or two sentences."""

    name: str
    label: str
    scale: Scale
    unit: str = ""
    whole: bool = False
    group: str
    help: str


class ChoiceKnob(msgspec.Struct, frozen=True, kw_only=True):
    """One of a few values of a flag."""

    name: str
    label: str
    options: tuple[Option, ...]
    group: str
    help: str


Knob = SliderKnob | ChoiceKnob


def _slider(
    name: str,
    label: str,
    group: str,
    *,
    coarse: int,
    bend: float = 1.0,
    doubling: bool = False,
    unit: str = "",
) -> SliderKnob:
    """The knob of a flag: its range and its sentence are the catalogue's, how it feels is said here."""
    info = catalogue()[name]
    if info.low is None or info.high is None or info.step is None:
        raise ValueError(f"{name} has no range in flags.toml")
    whole = info.kind == "int"
    scale = Scale(
        low=info.low,
        high=info.high,
        step=info.step,
        coarse=coarse,
        bend=bend,
        doubling=doubling,
        digits=0 if whole else 2,
    )
    return SliderKnob(name=name, label=label, scale=scale, unit=unit, whole=whole, group=group, help=info.help)


def _choice(name: str, label: str, group: str, *options: Option) -> ChoiceKnob:
    return ChoiceKnob(name=name, label=label, options=options, group=group, help=catalogue()[name].help)


_FRACTION = _slider("mem_fraction_static", "Mem fraction", "Memory", coarse=5)
_RATIO = _slider("mamba_full_memory_ratio", "State:KV ratio", "Memory", coarse=4, bend=1.6)
_SLOTS = _slider("max_mamba_cache_size", "State slots", "Memory", coarse=8, bend=2.5)
_REQUESTS = _slider("max_running_requests", "Max requests", "Scheduling", coarse=8, bend=2.5)
_CHUNK = _slider("chunked_prefill_size", "Prefill chunk", "Scheduling", coarse=2, doubling=True, unit="tok")
_STATE_DTYPE = _choice(
    "mamba_ssm_dtype",
    "State dtype",
    "Memory",
    Option(AUTO, "auto", "what the model's config says"),
    Option("float32", "float32", "exact, twice the bytes"),
    Option("bfloat16", "bfloat16", "half the bytes: twice the slots"),
    Option("float16", "float16", "half the bytes, smaller range"),
)
_KV_DTYPE = _choice(
    "kv_cache_dtype",
    "KV dtype",
    "Memory",
    Option(AUTO, "auto", "as the model computes"),
    Option("bfloat16", "bfloat16", "two bytes a value"),
    Option("fp8_e4m3", "fp8_e4m3", "one byte: twice the tokens"),
    Option("fp8_e5m2", "fp8_e5m2", "one byte, wider range, less exact"),
)
_STRATEGY = _choice(
    "mamba_radix_cache_strategy",
    "Cache strategy",
    "Scheduling",
    Option(AUTO, "auto", "the server decides by model class"),
    Option("no_buffer", "no_buffer", "3 slots a request, reuse at chunk ends"),
    Option("extra_buffer", "extra_buffer", "5 slots a request, reuse every 64 tokens"),
    Option("extra_buffer_lazy", "extra_buffer_lazy", "4 slots a request, buffer on demand"),
)
_POLICY = _choice(
    "schedule_policy",
    "Policy",
    "Scheduling",
    Option(AUTO, "auto", "the server's default: fcfs"),
    Option("fcfs", "fcfs", "first come, first served"),
    Option("lpm", "lpm", "longest cached prefix first: more hits"),
    Option("dfs-weight", "dfs-weight", "by the tree of prefixes"),
    Option("lof", "lof", "longest output first"),
    Option("random", "random", "no order"),
)
_OFF = Option("off", "off", "no draft head, all memory for the pools")
_PRESETS: dict[str, tuple[Option, dict[str, Any]]] = {
    "nextn-1": (
        Option("nextn-1", "NEXTN 1 step", "2 drafts: small buffers"),
        {
            "speculative_algorithm": "NEXTN",
            "speculative_num_steps": 1,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 2,
        },
    ),
    "nextn-3": (
        Option("nextn-3", "NEXTN 3 steps", "4 drafts: faster where they are accepted, larger buffers"),
        {
            "speculative_algorithm": "NEXTN",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        },
    ),
}


def knobs_for(shape: ModelShape | None, flags: dict[str, Any]) -> tuple[Knob, ...]:
    """The knobs of a model; while the shape is not known, those of a hybrid model when the flags name states."""
    hybrid = shape.family is not Family.PLAIN if shape else any(n.startswith("mamba_") for n in flags)
    knobs: list[Knob] = [_FRACTION]
    if hybrid:
        knobs.append(_RATIO)
        if flags.get(_SLOTS.name) is not None:
            knobs.append(_SLOTS)
        knobs.append(_STATE_DTYPE)
    knobs += [_with_asked(_KV_DTYPE, flags), _REQUESTS, _CHUNK, _with_asked(_POLICY, flags)]
    if hybrid:
        knobs.append(_with_asked(_STRATEGY, flags))
    drafts = shape is None or shape.draft_layers > 0
    if drafts or flags.get("speculative_algorithm"):
        knobs.append(_speculation(flags, drafts=drafts))
    return tuple(knobs)


def choice_key(knob: ChoiceKnob, flags: dict[str, Any]) -> str:
    """The option that the flags stand on."""
    if knob.name != SPECULATION:
        value = flags.get(knob.name)
        return AUTO if value is None else str(value)
    asked = _speculative(flags)
    if not asked.get("speculative_algorithm"):
        return _OFF.key
    for key, (_, preset) in _PRESETS.items():
        if _speculative(preset) == asked:
            return key
    return "asked"


def choice_flags(knob: ChoiceKnob, key: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The flags that an option means; None removes one. ``asked``: flags of the base, for the option "as asked"."""
    if knob.name != SPECULATION:
        return {knob.name: None if key == AUTO else key}
    if key in _PRESETS:
        return dict(_PRESETS[key][1])
    if key == "asked":
        return {name: asked.get(name) for name in SPECULATIVE_FLAGS}
    return dict.fromkeys(SPECULATIVE_FLAGS)


def slider_value(knob: SliderKnob, flags: dict[str, Any]) -> float | None:
    """Where the flags stand; None when the flag is not set or no number."""
    value = flags.get(knob.name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def resting_value(knob: SliderKnob, inputs: PlanInputs | None, plan: Plan | None) -> float | None:
    """Where an unset slider stands: what the server would take by itself, as far as the plan tells."""
    if knob.name == _RATIO.name:
        info = lookup(knob.name)
        return float(info.default) if info is not None else None
    if plan is None or inputs is None:
        return None
    if knob.name == _REQUESTS.name:
        return float(plan.max_running_requests)
    if knob.name == _FRACTION.name and inputs.free_before.gib > 0:
        return 1 - plan.reserve_gib / inputs.free_before.gib
    return None


def slider_flags(knob: SliderKnob, value: float | None) -> dict[str, Any]:
    """The flag that a place of the slider means."""
    if value is None:
        return {knob.name: None}
    return {knob.name: round(value) if knob.whole else round(value, fine(knob.scale).digits)}


def _speculative(flags: dict[str, Any]) -> dict[str, Any]:
    topk = flags.get("speculative_eagle_topk")
    asked = {name: flags.get(name) for name in SPECULATIVE_FLAGS}
    # An unset top-k is 1 there: the same setting spelled shorter.
    return {**asked, "speculative_eagle_topk": 1 if topk is None and asked["speculative_algorithm"] else topk}


def _speculation(flags: dict[str, Any], *, drafts: bool) -> ChoiceKnob:
    options = [_OFF]
    if drafts:
        options += [option for option, _ in _PRESETS.values()]
    asked = _speculative(flags)
    if asked.get("speculative_algorithm") and all(_speculative(p) != asked for _, p in _PRESETS.values()):
        steps, tokens = asked["speculative_num_steps"], asked["speculative_num_draft_tokens"]
        algorithm = asked["speculative_algorithm"]
        options.append(Option("asked", f"{algorithm} {steps}/{tokens}", "as the recipe asks: steps / draft tokens"))
    return ChoiceKnob(
        name=SPECULATION,
        label="Speculation",
        options=tuple(options),
        group="Scheduling",
        help=catalogue()["speculative_algorithm"].help,
    )


def _with_asked(knob: ChoiceKnob, flags: dict[str, Any]) -> ChoiceKnob:
    """The knob with the recipe's own value among its options."""
    asked = flags.get(knob.name)
    if asked is None or any(o.key == str(asked) for o in knob.options):
        return knob
    return msgspec.structs.replace(knob, options=(*knob.options, Option(str(asked), str(asked), "as the recipe asks")))
