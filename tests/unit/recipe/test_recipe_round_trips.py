"""What is written is what is read: recipes, files, presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.flags import FlagInfo, catalogue
from tuner.recipe import (
    ApiSettings,
    Recipe,
    RecipeError,
    TunerSettings,
    dumps_settings,
    dumps_toml,
    load,
    loads_settings,
    loads_toml,
    to_argv,
)

PRESETS = sorted((Path(__file__).parents[3] / "presets").glob("*.toml"))

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from('abc é."'), inner, max_size=3),
    max_leaves=5,
)


def one(info: FlagInfo, kind: str) -> st.SearchStrategy[Any]:
    if info.choices:
        return st.sampled_from(info.choices)
    if kind == "str":
        return WORDS
    low = info.least if info.least is not None else info.above + 0.001 if info.above is not None else -(10**6)
    high = info.most if info.most is not None else 10**6
    return st.integers(int(low), int(high)) if kind == "int" else st.floats(low, high)


def value_of(info: FlagInfo) -> st.SearchStrategy[Any]:
    if info.secret:
        return st.just("${SOME_KEY}")
    if info.kind == "bool":
        return st.booleans()
    if info.kind == "list":
        return st.lists(one(info, info.element), min_size=0 if info.bare else 1, max_size=3)
    if info.kind == "json":
        tables = st.dictionaries(st.sampled_from("abc-."), JSON, max_size=3)
        plain = st.dictionaries(st.sampled_from("abc-."), WORDS | st.booleans(), max_size=3)
        return {"object": tables, "array": st.lists(JSON, max_size=3), "text": plain | WORDS}[info.form]
    return one(info, info.kind)


FLAGS = st.lists(st.sampled_from(list(catalogue().values())), max_size=8).flatmap(
    lambda infos: st.fixed_dictionaries({info.name: value_of(info) for info in infos})
)
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: "TOKEN" not in name)
RECIPES = st.builds(
    Recipe,
    flags=FLAGS,
    environment=st.dictionaries(NAMES, WORDS | st.just("${HOME}/x"), max_size=3),
    python=st.none() | st.just("/opt/环境/bin/python"),
    tuner=st.builds(
        TunerSettings,
        model_shape=st.none() | st.just("shape"),
        headroom_gib=st.none() | st.floats(0, 100),
        need_input_tokens=st.none() | st.integers(1, 10**6),
        need_output_tokens=st.none() | st.integers(1, 10**6),
        need_agents=st.none() | st.integers(1, 64),
        need_warm_prefixes=st.none() | st.integers(0, 64),
        checks=st.none() | st.sampled_from(["prefix reuse", "thinking,  tool call"]),
        launcher=st.none() | st.sampled_from(["srun --gres=gpu:1", "docker run -v '/模型 a:/m' sglang"]),
        simulator=st.dictionaries(st.sampled_from(["speed", "fault"]), st.integers(0, 9), max_size=2),
    ),
    api=st.builds(ApiSettings, timeout_seconds=st.none() | st.floats(0, 1000)),
)


def same(recipe: Recipe) -> Recipe:
    """A recipe without the text it came from."""
    return msgspec.structs.replace(recipe, source_text=None, source_layout=None)


@settings(max_examples=200, deadline=None)
@given(RECIPES)
def test_a_recipe_written_and_read_is_the_same(recipe: Recipe) -> None:
    text = dumps_toml(recipe)
    back = loads_toml(text)
    assert same(back) == recipe
    assert dumps_toml(back) == text
    assert to_argv_or_sentence(back) == to_argv_or_sentence(recipe)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PRESETS), FLAGS, st.sets(st.sampled_from(sorted(catalogue()))))
def test_a_file_with_changed_flags_says_the_changed_recipe(path: Path, flags: dict[str, Any], gone: set[str]) -> None:
    recipe = load(path).with_flags({**dict.fromkeys(gone), **flags})
    text = dumps_toml(recipe, ["a round"])
    back = loads_toml(text, recipe.name)
    assert same(back) == same(recipe)
    assert dumps_toml(back) == text
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    assert all(line in text for line in comments)


@settings(max_examples=100, deadline=None)
@given(RECIPES)
def test_settings_written_and_read_over_their_recipe_change_nothing(recipe: Recipe) -> None:
    text = dumps_settings(recipe)
    assert same(loads_settings(text, recipe)) == recipe
    assert dumps_settings(loads_settings(text, None)) == text


def to_argv_or_sentence(recipe: Recipe) -> list[str] | str:
    try:
        return to_argv(recipe)
    except RecipeError as refused:
        return str(refused)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_says_what_it_was_measured_on_and_round_trips(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    recipe = load(path)
    assert dumps_toml(recipe) == text
    assert "Measured on:" in text.split("[server]")[0]
    assert recipe.model_path and recipe.tuner.model_shape
    assert same(loads_toml(dumps_toml(same(recipe)), recipe.name)) == same(recipe)
    assert (Path(__file__).parents[3] / "tuner" / "shapes" / f"{recipe.tuner.model_shape}.json").exists()


def test_there_are_the_four_presets() -> None:
    assert [path.stem for path in PRESETS] == ["demo", "qwen3-next-80b", "qwen3.8-27b-r01", "qwen3.8-27b-r15"]


def test_only_the_demo_runs_on_the_simulator() -> None:
    assert [path.stem for path in PRESETS if load(path).simulated] == ["demo"]


def test_a_change_is_written_where_it_stands_and_nothing_else_moves() -> None:
    text = "# mine\n[memory]\nmem_fraction_static = 0.9  # high\n\n# odd\n[other]\nx = 1\n"
    recipe = loads_toml(text).with_flags({"mem_fraction_static": 0.92, "kv_cache_dtype": "fp8_e4m3", "port": 1})
    assert dumps_toml(recipe) == (
        '# mine\n[memory]\nmem_fraction_static = 0.92  # high\nkv_cache_dtype = "fp8_e4m3"\n\n# odd\n[other]\nx = 1\n\n'
        "[server]\nport = 1\n"
    )


def test_comments_of_one_write_are_replaced_by_the_next() -> None:
    recipe = loads_toml("# mine\n[server]\nport = 1\n")
    first = dumps_toml(recipe, ["r1: 100 KV tokens", "two\nlines"])
    assert first == "#: r1: 100 KV tokens\n#: two\n#: lines\n\n# mine\n[server]\nport = 1\n"
    second = dumps_toml(loads_toml(first), ["r2"])
    assert second == "#: r2\n\n# mine\n[server]\nport = 1\n"
    assert dumps_toml(loads_toml(second)) == second


def test_comments_about_other_flags_do_not_survive_a_change() -> None:
    first = dumps_toml(loads_toml("[server]\nport = 1\n"), ["r1 measured this"])
    assert dumps_toml(loads_toml(first).with_flags({"port": 2})) == "[server]\nport = 2\n"


def test_comments_carry_no_secret_and_no_escape_sequence() -> None:
    text = dumps_toml(Recipe(flags={"port": 1}), ["started with --api-key hunter2hunter2 \x1b[31mred"])
    assert "hunter2" not in text and "\x1b" not in text
    assert loads_toml(text).port == 1


def test_a_flag_by_its_old_name_is_changed_under_that_name() -> None:
    recipe = loads_toml('[memory]\nmamba_scheduler_strategy = "auto"  # old\n')
    text = dumps_toml(recipe.with_flags({"mamba_radix_cache_strategy": "no_buffer"}))
    assert text == '[memory]\nmamba_scheduler_strategy = "no_buffer"  # old\n'


@pytest.mark.parametrize(
    "text",
    [
        "server.port = 1\nserver.host = 'a'\nmemory.page_size = 2\n",
        "server = {port = 1, host = 'a'}\n",
        "server = {port = 1}\n[memory]\npage_size = 2",
        "[server]\nport = 1\n[server.default_chat_template_kwargs]\na = 1\n[memory]\npage_size = 2\n",
        "[server]\nport = 1\n[memory]\npage_size = 2\n[server.extra]\nx = 1\n",
        "[server.extra]\nx = 1\n[memory]\n[server]\nport = 1\n",
        "[[things]]\nx = 1\n[[things]]\nx = 2\n[server]\nport = 1\n",
        "port = 1\nhost = 'a'\n\n[memory]\n",
        "[server]\r\nport = 1\r\n\r\n# c\r\n[memory]\r\n",
        "[ server ]\n  port = 1 # indented\n\n\n\n[ 'memory' ]\n\"page_size\" = 2\n",
        "[parsers]\ndefault_chat_template_kwargs.a = 1\ndefault_chat_template_kwargs.b.c = 2\n[server]\nport = 1",
        "[flags]\ncuda_graph_bs = [ # sizes\n  1,\n  2, # two\n]\n[server]\nport=1\n",
        "# only a comment",
        "",
    ],
)
def test_files_of_any_style_are_changed_without_loss(text: str) -> None:
    recipe = loads_toml(text)
    changes = {
        "port": 7,
        "host": None,
        "page_size": 64,
        "default_chat_template_kwargs": {"a": [1, {"b": "é"}]},
        "cuda_graph_bs_decode": [4],
        "enable_metrics": True,
        "attn_dp_size": 2,
    }
    changed = msgspec.structs.replace(recipe.with_flags(changes), environment={"A": "b"}, python="simulator")
    written = dumps_toml(changed)
    back = loads_toml(written)
    assert same(back) == same(changed)
    assert dumps_toml(back) == written
    assert "Written anew" not in written
    emptied = msgspec.structs.replace(back, flags={}, environment={}, python=None)
    assert same(loads_toml(dumps_toml(emptied))) == same(emptied)
