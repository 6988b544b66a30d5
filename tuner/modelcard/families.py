"""Which layers keep a state and which a KV cache, family by family.

Each function takes the language model's table of a ``config.json`` and follows the config class of the
same name in SGLang's ``srt/configs`` (read in 0.5.9 to 0.5.23; GDN also seen on recordings).
"""

from __future__ import annotations

import msgspec

from tuner.modelcard.reader import LARGEST, ConfigReader, shown
from tuner.modelcard.types import ModelError, StateShape


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Layer numbers by kind. A layer may be of both kinds (Falcon-H1) or of neither (an MLP of Nemotron-H)."""

    total: int
    attention: tuple[int, ...]
    states: tuple[int, ...] = ()
    state: StateShape | None = None
    #: Layers that are nothing but a feed-forward network; None: every layer has one.
    feed_forward: tuple[int, ...] | None = None


def _total(text: ConfigReader) -> int:
    return text.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=LARGEST["layers"])


def plain(text: ConfigReader) -> Layers:
    """Every layer keeps a KV cache."""
    total = _total(text)
    return Layers(total=total, attention=tuple(range(total)))


def gdn(text: ConfigReader) -> Layers:
    """Qwen3-Next, Qwen3.5 and kin (``qwen3_next.py``, ``qwen3_5.py``): every n-th layer is full attention."""
    total = _total(text)
    kinds = text.words("layer_types")
    if kinds is not None:
        if len(kinds) != total:
            raise ModelError(f"{text.where} lists {len(kinds)} layer_types for {total} layers: the file is damaged.")
        unknown = sorted(set(kinds) - {"full_attention", "linear_attention"})
        if unknown:
            raise ModelError(f"{text.where} has layers of kind {shown(unknown[0])} that the planner does not know.")
        attention = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
    else:
        interval = text.count("full_attention_interval", most=LARGEST["layers"], default=4)
        attention = tuple(i for i in range(total) if (i + 1) % interval == 0)
    states = tuple(sorted(set(range(total)) - set(attention)))
    value_heads = text.count("linear_num_value_heads", most=LARGEST["heads"])
    value_dim = text.count("linear_value_head_dim")
    return Layers(
        total=total,
        attention=attention,
        states=states,
        state=StateShape(
            layers=len(states),
            heads=value_heads,
            head_dim=value_dim,
            state_size=text.count("linear_key_head_dim"),
            groups=text.count("linear_num_key_heads", most=LARGEST["heads"]),
            intermediate=value_heads * value_dim,
            conv_kernel=text.count("linear_conv_kernel_dim", most=1024),
            ssm_dtype=_ssm_dtype(text),
        ),
    )


def _kda_state(layers: int, heads: int, dim: int, kernel: int) -> StateShape:
    """KDA: three short convolutions of heads * dim each (``KimiLinearStateShape.create``)."""
    return StateShape(
        layers=layers,
        heads=heads,
        head_dim=dim,
        state_size=dim,
        groups=heads,
        intermediate=heads * dim,
        conv_kernel=kernel,
    )


def kimi_linear(text: ConfigReader) -> Layers:
    """Kimi-Linear (``kimi_linear.py``): layer numbers in the config count from one."""
    total = _total(text)
    linear = text.need("linear_attn_config")
    numbered = linear.numbers("kda_layers")
    if not numbered:
        raise ModelError("linear_attn_config has no kda_layers: the file is damaged.")
    states = tuple(sorted(number - 1 for number in numbered if 0 < number <= total))
    attention = tuple(sorted(set(range(total)) - set(states)))
    heads = linear.count("num_heads", most=LARGEST["heads"])
    dim = linear.count("head_dim")
    state = _kda_state(len(states), heads, dim, linear.count("short_conv_kernel_size", most=1024))
    return Layers(total=total, attention=attention, states=states, state=state)


def bailing(text: ConfigReader) -> Layers:
    """Bailing / Ling / Ring V2.5 (Lightning) and V3 (KDA): ``bailing_hybrid.py``."""
    total = _total(text)
    schedule = text.table["layer_group_size"]
    if isinstance(schedule, list):
        marks = text.numbers("layer_group_size") or ()
        if len(marks) != total:
            raise ModelError(f"{text.where} lists {len(marks)} layers in layer_group_size for {total}: it is damaged.")
        states = tuple(i for i, mark in enumerate(marks) if mark == 1)
    else:
        group = text.count("layer_group_size", most=LARGEST["layers"])
        states = tuple(i for i in range(total) if (i + 1) % group != 0)
    attention = tuple(sorted(set(range(total)) - set(states)))
    heads = text.count("num_attention_heads", most=LARGEST["heads"])
    dim = text.count("head_dim", default=text.count("hidden_size") // heads)
    kernel = text.optional_count("short_conv_kernel_size", most=1024)
    state = _lightning_state(len(states), heads, dim) if kernel is None else _kda_state(len(states), heads, dim, kernel)
    return Layers(total=total, attention=attention, states=states, state=state)


def _lightning_state(layers: int, heads: int, dim: int) -> StateShape:
    """Lightning attention keeps no convolution window."""
    return StateShape(layers=layers, heads=heads, head_dim=dim, state_size=dim, groups=0, intermediate=0, conv_kernel=1)


def minicpm_sala(text: ConfigReader) -> Layers:
    """MiniCPM-SALA (``minicpm.py``): ``mixer_types`` repeats until the layers are full."""
    total = _total(text)
    mixers = text.words("mixer_types") or ()
    if not 0 < len(mixers) <= total:
        raise ModelError(f"{text.where} lists {len(mixers)} mixer_types for {total} layers: the file is damaged.")
    kinds = [mixers[i % len(mixers)].replace("_", "-") for i in range(total)]
    states = tuple(i for i, kind in enumerate(kinds) if kind.startswith("lightning"))
    attention = tuple(i for i, kind in enumerate(kinds) if kind.startswith("minicpm"))
    if len(states) + len(attention) != total:
        raise ModelError(f"{text.where} has a mixer type that the planner does not know.")
    heads = text.count("num_attention_heads", most=LARGEST["heads"])
    dim = text.count("head_dim", default=text.count("hidden_size") // heads)
    kv_heads = text.count("num_key_value_heads", most=LARGEST["heads"], default=heads)
    state = _lightning_state(
        len(states),
        text.count("lightning_nkv", most=LARGEST["heads"], default=kv_heads),
        text.count("lightning_head_dim", default=dim),
    )
    return Layers(total=total, attention=attention, states=states, state=state)


def nemotron_h(text: ConfigReader) -> Layers:
    """Nemotron-H (``nemotron_h.py``): a letter or a word per layer; M keeps a state, * a KV cache, - and E neither."""
    pattern = text.table.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        kinds = list(pattern)
    else:
        words = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
        kinds = [words.get(word, "?") for word in text.words("layers_block_type") or ()]
    if not kinds or set(kinds) - set("M*-E"):
        raise ModelError(f"{text.where} has a layer pattern that the planner does not know.")
    total = text.count("num_hidden_layers", most=LARGEST["layers"], default=len(kinds))
    if len(kinds) != total:
        raise ModelError(f"{text.where} has a pattern of {len(kinds)} layers for {total} layers: the file is damaged.")
    states = tuple(i for i, kind in enumerate(kinds) if kind == "M")
    heads = text.count("mamba_num_heads", most=LARGEST["heads"])
    dim = text.count("mamba_head_dim")
    state = StateShape(
        layers=len(states),
        heads=heads,
        head_dim=dim,
        state_size=text.count("ssm_state_size"),
        groups=text.count("n_groups", "mamba_n_groups", most=LARGEST["heads"]),
        intermediate=heads * dim,
        conv_kernel=text.count("conv_kernel", "mamba_d_conv", most=1024),
        ssm_dtype=_ssm_dtype(text),
    )
    return Layers(
        total=total,
        attention=tuple(i for i, kind in enumerate(kinds) if kind == "*"),
        states=states,
        state=state,
        feed_forward=tuple(i for i, kind in enumerate(kinds) if kind in "-E"),
    )


def _mamba_d_state(text: ConfigReader, layers: int, intermediate: int, ssm_dtype: str | None) -> StateShape:
    heads = text.count("mamba_n_heads", most=LARGEST["heads"])
    dim = text.table.get("mamba_d_head")
    return StateShape(
        layers=layers,
        heads=heads,
        head_dim=intermediate // heads if dim in (None, "auto") else text.count("mamba_d_head"),
        state_size=text.count("mamba_d_state"),
        groups=text.count("mamba_n_groups", most=LARGEST["heads"], default=1),
        intermediate=intermediate,
        conv_kernel=text.count("mamba_d_conv", most=1024, default=4),
        ssm_dtype=ssm_dtype,
    )


def falcon_h1(text: ConfigReader) -> Layers:
    """Falcon-H1 (``falcon_h1.py``): every layer is attention and Mamba2 side by side."""
    total = _total(text)
    every = tuple(range(total))
    expanded = text.count("mamba_expand", most=64, default=2) * text.count("hidden_size")
    inner = text.count("mamba_d_ssm", default=expanded)
    return Layers(
        total=total, attention=every, states=every, state=_mamba_d_state(text, total, inner, _ssm_dtype(text))
    )


def granite_hybrid(text: ConfigReader) -> Layers:
    """Granite 4 hybrid (``granitemoehybrid.py``): SGLang gives its states no dtype of the config, so float32."""
    total = _total(text)
    kinds = text.words("layer_types") or text.words("layers_block_type")
    if kinds is None or len(kinds) != total:
        raise ModelError(f"{text.where} has no layer_types for its {total} layers: it cannot be planned.")
    states = tuple(i for i, kind in enumerate(kinds) if kind == "mamba")
    inner = text.count("mamba_expand", most=64, default=2) * text.count("hidden_size")
    return Layers(
        total=total,
        attention=tuple(i for i, kind in enumerate(kinds) if kind != "mamba"),
        states=states,
        state=_mamba_d_state(text, len(states), inner, None) if states else None,
    )


def lfm2(text: ConfigReader) -> Layers:
    """LFM2 (``lfm2.py``, ``lfm2_moe.py``): short convolutions, whose state is the window alone."""
    total = _total(text)
    kinds = text.words("layer_types")
    if kinds is None:
        full = text.numbers("full_attn_idxs")
        if full is None:
            raise ModelError(f"{text.where} has neither layer_types nor full_attn_idxs: it cannot be planned.")
        attention = tuple(sorted(i for i in full if 0 <= i < total))
        states = tuple(sorted(set(range(total)) - set(attention)))
    else:
        attention = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
        states = tuple(i for i, kind in enumerate(kinds) if kind in ("conv", "short_conv"))
    hidden = text.count("hidden_size")
    state = StateShape(
        layers=len(states),
        heads=0,
        head_dim=hidden,
        state_size=0,
        groups=1,
        intermediate=hidden,
        conv_kernel=text.count("conv_L_cache", most=1024),
        ssm_dtype=_ssm_dtype(text),
    )
    return Layers(total=total, attention=attention, states=states, state=state)


def jet_nemotron(text: ConfigReader) -> Layers:
    """Jet-Nemotron (``jet_nemotron.py``): "attn" and "swa" layers both keep a full KV cache."""
    total = _total(text)
    kinds = text.words("layer_types")
    if kinds is None or len(kinds) != total:
        raise ModelError(f"{text.where} has no layer_types for its {total} layers: it cannot be planned.")
    states = tuple(i for i, kind in enumerate(kinds) if kind == "jet")
    jet = text.need("efficient_attention_config").need("jet")
    heads = jet.count("num_heads", most=LARGEST["heads"])
    key_dim = jet.count("head_dim")
    value_dim = int(key_dim * jet.number("expand_v", 1.0))
    state = StateShape(
        layers=len(states),
        heads=heads,
        head_dim=value_dim,
        state_size=key_dim,
        groups=heads,
        intermediate=heads * value_dim,
        conv_kernel=jet.count("conv_size", most=1024),
        ssm_dtype=_ssm_dtype(text),
    )
    return Layers(
        total=total,
        attention=tuple(i for i, kind in enumerate(kinds) if kind in ("attn", "swa")),
        states=states,
        state=state,
    )


def _ssm_dtype(text: ConfigReader) -> str | None:
    """``mamba_ssm_dtype`` of the config; SGLang warns of any other word and takes float32."""
    found = text.text("mamba_ssm_dtype")
    return found if found in ("float32", "bfloat16", "float16") else None
