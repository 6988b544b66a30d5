"""Both layouts of the field: every key is a flag, or kept and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.flags import lookup
from tuner.recipe import (
    ApiSettings,
    Recipe,
    RecipeError,
    dumps_settings,
    dumps_toml,
    load,
    loads_settings,
    loads_toml,
    to_argv,
)

GUIDE = """\
# a guide
[server]
host = "0.0.0.0"
port = 30000
model_path = "/models/next"
tokenizer_path = "/models/next"
trust_remote_code = true

[memory]
mem_fraction_static = 0.85
mamba_full_memory_ratio = 0.35   # the lever
enable_elastic_memory_pool = true

[cache]
enable_prefix_caching = true
radix_cache_page_size = 1
enable_dual_lru_eviction = true

[speculative]
speculative_algorithm = "EAGLE"
speculative_num_steps = 3
speculative_num_draft_tokens = 8
speculative_topk = 1
enable_mamba_state_sandbox = true

[pd]
enable_pd_disaggregation = false
mamba_state_transfer_mode = "atomic"
"""

SETTINGS = """\
{
  "runtime": {
    "chunked_prefill_size": 8192,
    "max_running_requests": 256,
    "schedule_policy": "fcfs",
    "disable_radix_cache": false
  },
  "mamba": {"state_dtype": "float16", "state_snapshot_on_match": true, "state_copy_on_write": true},
  "logging": {"level": "info", "log_requests": true, "log_mamba_state_stats": true},
  "api": {"base_url": "https://gateway.example/v1", "api_key_env": "TAOTOKEN_API_KEY", "timeout_seconds": 120}
}
"""

ROUND_15 = """\
[server]
host = "0.0.0.0"
port = 30000
served_model_name = "Qwen3.8-27B"
model_path = "/models/27b"
trust_remote_code = true

[memory]
mem_fraction_static = 0.98
kv_cache_dtype = "fp8_e4m3"
mamba_ssm_dtype = "bfloat16"
mamba_full_memory_ratio = 0.9
mamba_radix_cache_strategy = "extra_buffer"

[scheduling]
max_running_requests = 3
schedule_policy = "lpm"
chunked_prefill_size = 4096
max_prefill_tokens = 8192

[speculative]
algorithm = "NEXTN"
num_steps = 1
eagle_topk = 1
num_draft_tokens = 2

[parsers]
reasoning_parser = "qwen3"
tool_call_parser = "qwen3_coder"

[observability]
enable_metrics = true
"""


def same(recipe: Recipe) -> Recipe:
    """A recipe without the text it came from."""
    return msgspec.structs.replace(recipe, source_text=None, source_layout=None)


def test_the_guides_config_gives_the_flags_it_means() -> None:
    recipe = loads_toml(GUIDE, "guide")
    assert recipe.flags == {
        "host": "0.0.0.0",
        "port": 30000,
        "model_path": "/models/next",
        "tokenizer_path": "/models/next",
        "trust_remote_code": True,
        "mem_fraction_static": 0.85,
        "mamba_full_memory_ratio": 0.35,
        "page_size": 1,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 8,
        "speculative_eagle_topk": 1,
    }
    assert recipe.source_layout == "toml:flat"


def test_the_guides_other_keys_are_kept_with_the_reason_and_the_nearest_flag() -> None:
    kept = {key.where: key for key in loads_toml(GUIDE).kept}
    assert {where: key.nearest for where, key in kept.items()} == {
        "memory.enable_elastic_memory_pool": "enable_unified_memory",
        "cache.enable_dual_lru_eviction": "radix_eviction_policy",
        "speculative.enable_mamba_state_sandbox": None,
        "pd.enable_pd_disaggregation": "disaggregation_mode",
        "pd.mamba_state_transfer_mode": "disaggregation_transfer_backend",
    }
    for key in kept.values():
        assert key.why.endswith(".")
        assert key.nearest is None or lookup(key.nearest) is not None


def test_keys_that_are_no_flags_never_reach_the_command_line() -> None:
    recipe = loads_settings(SETTINGS, loads_toml(GUIDE + '\n[tuner]\nmodel_shape = "x"\n'))
    words = " ".join(to_argv(recipe))
    for absent in ("elastic", "lru", "sandbox", "pd", "transfer", "snapshot", "copy", "stats", "shape", "base"):
        assert absent not in words


def test_prefix_caching_turned_off_is_the_radix_cache_turned_off() -> None:
    off = loads_toml(GUIDE.replace("enable_prefix_caching = true", "enable_prefix_caching = false"))
    assert off.flags["disable_radix_cache"] is True
    assert "--disable-radix-cache" in to_argv(off)


def test_the_prefix_cache_switch_is_edited_where_the_file_has_it() -> None:
    recipe = loads_toml(GUIDE)
    off = dumps_toml(recipe.with_flags({"disable_radix_cache": True}))
    assert "enable_prefix_caching = false" in off and "disable_radix_cache" not in off
    assert dumps_toml(loads_toml(off).with_flags({"disable_radix_cache": None})) == GUIDE


def test_a_prefix_cache_switch_that_is_off_on_purpose_stays_in_the_file() -> None:
    recipe = loads_toml(GUIDE.replace("enable_prefix_caching = true", "enable_prefix_caching = false"))
    text = dumps_toml(recipe.with_flags({"disable_radix_cache": False}))
    assert "enable_prefix_caching = true" in text and "# a guide" in text
    assert loads_toml(text).flags["disable_radix_cache"] is False


def test_a_switch_and_its_opposite_that_disagree_are_refused() -> None:
    text = GUIDE.replace("[cache]", "[cache]\ndisable_radix_cache = true")
    with pytest.raises(RecipeError, match=r"cache.disable_radix_cache and cache.enable_prefix_caching"):
        loads_toml(text)


def test_settings_go_over_the_config_beside_them(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(GUIDE, encoding="utf-8")
    (tmp_path / "settings.json").write_text(SETTINGS, encoding="utf-8")
    recipe = load(tmp_path / "settings.json")
    assert recipe.flags["model_path"] == "/models/next"
    assert recipe.flags["chunked_prefill_size"] == 8192
    assert recipe.flags["mamba_ssm_dtype"] == "float16"
    assert recipe.flags["log_level"] == "info" and recipe.flags["log_requests"] is True
    assert recipe.flags["disable_radix_cache"] is False
    assert recipe.api == ApiSettings(
        base_url="https://gateway.example/v1", api_key_env="TAOTOKEN_API_KEY", timeout_seconds=120.0
    )
    assert {key.where for key in recipe.kept} >= {
        "mamba.state_snapshot_on_match",
        "mamba.state_copy_on_write",
        "logging.log_mamba_state_stats",
        "memory.enable_elastic_memory_pool",
    }
    assert load(tmp_path) == recipe


def test_settings_without_a_config_name_no_model(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(SETTINGS, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"names no model: put it beside the config\.toml"):
        load(tmp_path / "settings.json")


def test_settings_written_again_say_the_same() -> None:
    recipe = loads_settings(SETTINGS, loads_toml(GUIDE))
    text = dumps_settings(recipe)
    assert msgspec.json.decode(text) == msgspec.json.decode(SETTINGS)
    assert same(loads_settings(text, loads_toml(GUIDE))) == same(recipe)
    assert dumps_settings(loads_settings(text, None)) == text


def test_config_and_settings_fit_into_one_config() -> None:
    recipe = loads_settings(SETTINGS, loads_toml(GUIDE))
    text = dumps_toml(recipe)
    assert text.startswith("# a guide\n") and "# the lever" in text
    assert same(loads_toml(text)) == same(recipe)
    assert dumps_toml(loads_toml(text)) == text


def test_round_15_gives_its_command() -> None:
    words = " ".join(to_argv(loads_toml(ROUND_15)))
    assert words == (
        "--model-path /models/27b --host 0.0.0.0 --port 30000 --served-model-name Qwen3.8-27B --trust-remote-code "
        "--mem-fraction-static 0.98 --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16 "
        "--mamba-full-memory-ratio 0.9 --mamba-radix-cache-strategy extra_buffer --max-running-requests 3 "
        "--schedule-policy lpm --chunked-prefill-size 4096 --max-prefill-tokens 8192 "
        "--speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 2 --reasoning-parser qwen3 --tool-call-parser qwen3_coder --enable-metrics"
    )


def test_round_15_is_written_in_its_own_layout() -> None:
    assert dumps_toml(same(loads_toml(ROUND_15))) == ROUND_15


@pytest.mark.parametrize(
    ("section", "line", "name", "value"),
    [
        ("server", "mem-fraction-static = 0.9", "mem_fraction_static", 0.9),
        ("cache", "tensor_parallel_size = 2", "tp_size", 2),
        ("flags", 'mamba_scheduler_strategy = "extra_buffer"', "mamba_radix_cache_strategy", "extra_buffer"),
        ("speculative", "topk = 4", "speculative_eagle_topk", 4),
        ("speculative", 'attention_mode = "decode"', "speculative_attention_mode", "decode"),
        ("mamba", 'ssm_dtype = "float32"', "mamba_ssm_dtype", "float32"),
        ("logging", "level_http = 'warning'", "log_level_http", "warning"),
        ("scheduling", 'context_length = "256Ki"', "context_length", 262144),
        ("flags", "cuda_graph_bs = [1, 2, 3]", "cuda_graph_bs_decode", [1, 2, 3]),
        ("parsers", "default_chat_template_kwargs = '{\"a\": 1}'", "default_chat_template_kwargs", {"a": 1}),
    ],
)
def test_a_flag_is_read_in_any_section_by_any_spelling(section: str, line: str, name: str, value: Any) -> None:
    assert loads_toml(f"[{section}]\n{line}\n").flags == {name: value}


def test_a_table_is_read_as_the_json_it_is() -> None:
    recipe = loads_toml("[parsers.default_chat_template_kwargs]\nenable_thinking = false\n")
    assert to_argv(recipe) == ["--default-chat-template-kwargs", '{"enable_thinking":false}']


def test_an_unknown_key_is_kept_and_the_flag_it_resembles_is_named() -> None:
    recipe = loads_toml('colour = "red"\n[memory]\nmem_fraction = 0.9\n[notes]\nwho = "me"\n')
    assert recipe.flags == {}
    assert [(key.where, key.nearest) for key in recipe.kept] == [
        ("colour", None),
        ("memory.mem_fraction", "mem_fraction_static"),
        ("notes", None),
    ]


def test_the_same_flag_twice_with_two_values_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"server.tp_size and flags.tensor-parallel-size say different things"):
        loads_toml("[server]\ntp_size = 1\n[flags]\ntensor-parallel-size = 2\n")


def test_the_interpreter_the_environment_and_the_tuners_own_table_are_no_flags() -> None:
    recipe = loads_toml(
        '[server]\npython = "/opt/env/bin/python"\n[env]\nCUDA_VISIBLE_DEVICES = 3\nHF_TOKEN = "${HF_TOKEN}"\n'
        '[tuner]\nmodel_shape = "demo"\nheadroom_gib = 4\nsimulator = {speed = 50}\nunheard = 1\n'
    )
    assert recipe.flags == {} and to_argv(recipe) == []
    assert recipe.python == "/opt/env/bin/python" and not recipe.simulated
    assert recipe.environment == {"CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "${HF_TOKEN}"}
    assert recipe.tuner.headroom_gib == 4.0 and recipe.tuner.simulator == {"speed": 50}
    assert [key.where for key in recipe.kept] == ["tuner.unheard"]
