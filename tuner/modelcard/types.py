"""The shape of a model: what the planner must know of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ModelError(Exception):
    """A model folder or ``config.json`` that cannot be read; the message is one sentence for the operator."""


class Family(StrEnum):
    """The kind of layer that keeps a state beside attention."""

    GDN = "gdn"
    KDA = "kda"
    MAMBA2 = "mamba2"
    LIGHTNING = "lightning"
    SHORT_CONV = "short-conv"
    JET = "jet"
    PLAIN = "plain"


class StateShape(msgspec.Struct, frozen=True, kw_only=True):
    """One linear layer's state, before any tensor-parallel split, as in SGLang's ``configs/mamba_utils.py``.

    ``temporal`` is (heads, head_dim, state_size); the convolution window is (conv_dim, conv_kernel - 1)
    with conv_dim = intermediate + 2 * groups * state_size. ``layers`` counts the layers that keep a state.
    """

    layers: int
    heads: int
    head_dim: int
    state_size: int
    groups: int
    intermediate: int
    conv_kernel: int
    ssm_dtype: str | None = None


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner must know of a model. Counts are for the whole model, weights in bytes (an estimate)."""

    name: str
    architecture: str
    model_type: str
    family: Family
    layers: int
    attention_layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    #: MLA: kv_lora_rank + qk_rope_head_dim; None for MHA / GQA.
    mla_width: int | None = None
    state: StateShape | None = None
    context_len: int
    dtype: str = "bfloat16"
    hidden_size: int
    vocab_size: int
    multimodal: bool = False
    #: Experts of a layer; 0 for a model without.
    experts: int = 0
    #: Layers of the draft head (MTP) that the checkpoint carries.
    draft_layers: int = 0
    weights_bytes: int
    draft_weights_bytes: int = 0
    #: Of the draft's weights, its embedding and head: given back after sizing (0.5.17, recordings).
    draft_shared_bytes: int = 0
    #: Layer numbers with a KV cache and with a state: pipeline stages take their share by number.
    attention_layer_ids: tuple[int, ...] = ()
    state_layer_ids: tuple[int, ...] = ()
    #: Query heads; None where the config does not say.
    attention_heads: int | None = None
    #: KV dtype that the checkpoint asks for (``quantization_config.kv_cache_scheme``); None: the model's dtype.
    kv_cache_dtype: str | None = None
    #: Vision tower, as the default of ``mem_fraction_static`` sees it: layers (None: not named) and hidden size.
    vision_layers: int | None = None
    vision_hidden: int | None = None
    #: Of the weights, what lies on every rank undivided: the rotary table and the allocator's rounding.
    whole_bytes: int = 0
    #: ``num_nextn_predict_layers`` where SGLang would read it from; None: the key is not there.
    nextn_layers: int | None = None
