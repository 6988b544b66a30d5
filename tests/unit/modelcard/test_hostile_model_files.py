"""Model files that are damaged on purpose: one sentence each, and never more memory than a real one takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tuner.modelcard import ModelError, shape_from_config
from tuner.modelfile import load_shape, weights_on_disk

TENSOR = "model.layers.0.weight"


def shard(folder: Path, header: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


@pytest.mark.parametrize(
    "offsets", [["a", "b"], [None, 1], [0, 1e300], [0, 10**30], [-1, 5], [True, 5], [1], "ab", {"a": 1}, 5]
)
def test_a_shard_whose_offsets_are_nonsense_is_told(tmp_path: Path, offsets: object) -> None:
    with pytest.raises(ModelError, match="damaged header"):
        weights_on_disk(shard(tmp_path, json.dumps({TENSOR: {"data_offsets": offsets}}).encode()))


def test_a_shard_nested_without_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="damaged header"):
        weights_on_disk(shard(tmp_path, b'{"a":' * 100_000))


@pytest.mark.parametrize("path", ["~nobody-of-this-name/model", "m" * 5000, "m/" * 4000])
def test_a_path_that_cannot_be_one_is_told_in_one_short_sentence(path: str) -> None:
    for read in (load_shape, weights_on_disk):
        with pytest.raises(ModelError) as caught:
            read(path)
        assert len(str(caught.value)) < 300


def test_a_device_or_pipe_is_not_read_as_a_config(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for place in ("/dev/zero", str(pipe), str(tmp_path)):
        with pytest.raises(ModelError, match="is not a file"):
            load_shape(place)


@pytest.mark.parametrize("bits", [10**400, -8, 0, True, 1e300])
def test_bits_that_no_weight_has_do_not_decide_its_size(bits: object) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "quantization_config": {"quant_method": "x", "config_groups": {"a": {"weights": {"num_bits": bits}}}},
    }
    plain = shape_from_config({**config, "quantization_config": {"quant_method": "fp8"}})
    assert 0 < shape_from_config(config).weights_bytes <= plain.weights_bytes
