"""Reading a model folder: config.json and the headers of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.modelcard import ModelError, ModelShape, shape_from_config
from tuner.modelfile import load_shape, packaged_shapes, weights_on_disk

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1000,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def write_shard(path: Path, tensors: dict[str, int]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [offset, offset + size]}
        offset += size
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)


def test_a_folder_and_its_config_give_the_same_shape(tmp_path: Path) -> None:
    folder = tmp_path / "模型 一号"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert load_shape(folder) == load_shape(folder / "config.json")
    assert load_shape(folder).name == "模型 一号"


def test_a_packaged_shape_is_found_by_its_name() -> None:
    assert load_shape("hybrid-tiny").name == "hybrid-tiny"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"architectures": ["Qwen3F', "is not complete JSON"),
        (b"\x00\xff\x00 not json", "is not complete JSON"),
        (b"", "is not complete JSON"),
        (b"[1, 2]", "does not hold a table"),
        (b"{}", "neither architectures nor model_type"),
    ],
)
def test_a_damaged_config_is_told_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_shape(tmp_path)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_not_there_names_what_is() -> None:
    with pytest.raises(ModelError, match="hybrid-tiny"):
        load_shape("no-such-model")
    with pytest.raises(ModelError, match=r"There is no .*config\.json"):
        load_shape("/no/such/folder/config.json")


def test_weights_are_read_from_the_headers_alone(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-00001-of-00002.safetensors", {"model.embed_tokens.weight": 400, "model.a": 1000})
    write_shard(tmp_path / "model-00002-of-00002.safetensors", {"lm_head.weight": 400, "mtp.layers.0.w": 50})
    weights = weights_on_disk(tmp_path)
    assert weights is not None
    assert weights.target_bytes == 1800
    assert weights.draft_bytes == 50 + 400 + 400


def test_a_tied_head_is_loaded_twice_for_the_draft_too(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"model.embed_tokens.weight": 400, "mtp.fc.weight": 60})
    weights = weights_on_disk(tmp_path)
    assert weights is not None and weights.draft_bytes == 60 + 400 + 400


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    assert weights_on_disk(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, (10).to_bytes(8, "little") + b"not json!!", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_a_damaged_shard_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        weights_on_disk(tmp_path)
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(name=st.sampled_from(packaged_shapes()), data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_value_in_a_config_gives_more_than_a_sentence(name: str, data: st.DataObject) -> None:
    from importlib import resources

    config = json.loads(resources.files("tuner.shapes").joinpath(f"{name}.json").read_text("utf-8"))
    for key in sorted(data.draw(st.sets(st.sampled_from(sorted(config)), min_size=1, max_size=3))):
        config[key] = data.draw(json_values)
    try:
        shape = shape_from_config(config)
    except ModelError as problem:
        assert "\n" not in str(problem) and len(str(problem)) < 400
    else:
        assert msgspec.convert(msgspec.to_builtins(shape), ModelShape) == shape
