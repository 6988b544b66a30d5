"""Every form a recipe leaves in and comes back from: the same recipe, and the same bytes.

``TUNER_EXAMPLES=2000 pytest -o timeout=0 tests/unit/recipe/test_recipe_forms.py`` runs ten thousand hostile files, two
thousand of each form; without it a sample of them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_recipe_errors import every_use, mutated
from test_recipe_launch import parser_of_the_help_text, sample
from test_recipe_round_trips import PRESETS, RECIPES, same

from tuner.flags import FlagInfo, catalogue, is_in, lookup
from tuner.recipe import (
    Recipe,
    RecipeError,
    TunerSettings,
    dumps_settings,
    dumps_toml,
    load,
    loads_toml,
    read_text,
    to_argv,
    to_docker,
    to_shell,
    to_unit,
    to_yaml,
)
from tuner.recipe.words import Words

HELP = Path(__file__).parents[2] / "data" / "help-0.5.17.txt"
EXAMPLES = int(os.environ.get("TUNER_EXAMPLES", "60"))
Writer = Callable[[Recipe, Sequence[str]], str]
FORMS: dict[str, Writer] = {"a.sh": to_shell, "a.service": to_unit, "docker.sh": to_docker, "a.yaml": to_yaml}
HEAD = ("Round r1: verified.", 'Note: 保留 it\'s "so" $(x) `y` %z')


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_leaves_and_comes_back_the_same(path: Path, name: str) -> None:
    recipe = load(path)
    text = FORMS[name](recipe, HEAD)
    read = read_text(text, name)
    assert said(read.recipe) == said(recipe)
    assert FORMS[name](read.recipe, read.head) == text
    assert text.count(HEAD[0]) == 1


def said(recipe: Recipe) -> Recipe:
    """What a recipe says, without the text and name it came from; a switch that is off is not told from none."""
    return msgspec.structs.replace(same(recipe), name="")


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=max(40, EXAMPLES // 20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipe=RECIPES, simulated=st.booleans())
def test_any_recipe_leaves_and_comes_back_the_same(name: str, recipe: Recipe, simulated: bool) -> None:
    if simulated:
        recipe = msgspec.structs.replace(recipe, python="simulator")
    try:
        text = FORMS[name](recipe, HEAD)
    except RecipeError:
        # What no command line can say is told; see the tests of to_argv.
        return
    read = read_text(text, name)
    assert said(read.recipe) == said(recipe)
    assert FORMS[name](read.recipe, read.head) == text


@pytest.mark.parametrize("info", [i for i in catalogue().values() if is_in(i, "0.5.17")], ids=lambda info: info.name)
def test_every_flag_survives_from_toml_to_the_command_line_and_back(info: FlagInfo) -> None:
    recipe = loads_toml(dumps_toml(Recipe(flags={info.name: sample(info.name)})))
    words = to_argv(recipe)
    back = Words(Recipe()).flags(words)
    assert back.flags == recipe.flags and back.kept == ()
    assert to_argv(loads_toml(dumps_toml(back))) == words


def test_every_spelling_of_the_help_text_is_read() -> None:
    spellings = 0
    for action in parser_of_the_help_text()._actions:
        for spelling in action.option_strings:
            if not spelling.startswith("--") or spelling == "--help":
                continue
            spellings += 1
            name = spelling.removeprefix("--no-") if spelling.startswith("--no-") else spelling
            info = lookup(name)
            assert info is not None, spelling
            values = [] if action.nargs == 0 else _values(info)
            recipe = Words(Recipe()).flags([spelling, *values])
            assert len(recipe.flags) == 1 and not recipe.kept, spelling
    assert spellings > 460


def _values(info: FlagInfo) -> list[str]:
    if info.choices:
        return [str(info.choices[0])]
    if info.kind == "list":
        return {"int": ["1", "2"], "float": ["0.5"], "str": ["a", "b"]}[info.element]
    forms = {"int": "3", "float": "0.5", "json": '["a"]' if info.form == "array" else '{"a":1}'}
    return [forms.get(info.kind, "word")]


def test_the_words_of_a_yaml_are_those_of_the_command_line() -> None:
    """The merger of 0.5.17, played: its words with those of the comment are the recipe's own."""
    recipe = load(next(path for path in PRESETS if path.stem.endswith("r15"))).with_flags(
        {"cuda_graph_bs_decode": [1, 2], "api_key": "${KEY}", "dllm_fdfo": False, "disable_cuda_graph": True}
    )
    text = to_yaml(recipe)
    line = next(line for line in text.splitlines() if line.startswith("# For SGLang"))
    words = shlex.split(line.partition("--config FILE")[2])
    for key, value in yaml.safe_load(text).items():
        assert "_" not in key and key not in ("mamba-radix-cache-strategy", "cuda-graph-bs-decode")
        items = [] if value is True else [str(v) for v in value] if isinstance(value, list) else [str(value)]
        words += [f"--{key}", *items]
    parser = parser_of_the_help_text()
    merged, asked = vars(parser.parse_args(words)), vars(parser.parse_args(to_argv(recipe)))
    assert merged.pop("mamba_scheduler_strategy", None) == asked.pop("mamba_radix_cache_strategy")
    asked.pop("mamba_scheduler_strategy", None)
    merged.pop("mamba_radix_cache_strategy", None)
    assert merged == asked


def test_a_newer_version_takes_the_new_keys_and_an_older_one_the_old() -> None:
    recipe = Recipe(flags={"mamba_radix_cache_strategy": "auto", "cuda_graph_bs_decode": [1]})

    def keys(version: str) -> set[str]:
        return set(
            yaml.safe_load(to_yaml(msgspec.structs.replace(recipe, tuner=TunerSettings(sglang_version=version))))
        )

    assert keys("0.5.23") == {"mamba-radix-cache-strategy", "cuda-graph-bs-decode"}
    assert keys("0.5.17") == {"mamba-scheduler-strategy"}


bash = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


@bash
@settings(max_examples=25, deadline=None)
@given(recipe=RECIPES)
def test_bash_gives_the_docker_command_the_words_that_were_meant(recipe: Recipe) -> None:
    recipe = msgspec.structs.replace(recipe, flags={k: v for k, v in recipe.flags.items() if "${" not in str(v)})
    try:
        text, words = to_docker(recipe), to_argv(recipe)
    except RecipeError:
        return
    shown = text.replace("exec docker run", "printf '%s\\0' docker run")
    environ = {"PATH": os.environ["PATH"], "HOME": "/h", "SOME_KEY": "k"}
    done = subprocess.run(["bash", "-c", shown], capture_output=True, check=True, env=environ)
    told = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert told[told.index("sglang.launch_server") + 1 :] == words


SEEDS = [(name, write(load(path), HEAD)) for path in PRESETS for name, write in FORMS.items()]
SEEDS += [("config.toml", path.read_text(encoding="utf-8")) for path in PRESETS]
SEEDS += [
    ("r1.json", '{"number": 1, "recipe": {"flags": {"port": 7, "api_key": "${KEY}"}, "environment": {"A": "b"}}}')
]


def _by_ending(ending: str) -> st.SearchStrategy[tuple[str, str]]:
    seeds = [seed for seed in SEEDS if seed[0].endswith(ending)]
    return st.sampled_from(seeds).flatmap(lambda seed: mutated(seed[1]).map(lambda text: (seed[0], text)))


@pytest.mark.parametrize("ending", [".toml", ".json", ".yaml", ".sh", ".service"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_file_of_any_form_gives_a_recipe_or_a_sentence(ending: str, data: st.DataObject) -> None:
    name, text = data.draw(_by_ending(ending))
    try:
        recipe = read_text(text, name).recipe
    except RecipeError as refused:
        assert "\n" not in str(refused) and "\x1b" not in str(refused) and "Traceback" not in str(refused)
        return
    every_use(recipe)
    for write in (to_unit, to_docker, to_yaml, dumps_settings):
        with contextlib.suppress(RecipeError):
            write(recipe)


@settings(max_examples=EXAMPLES, deadline=None)
@given(text=st.text(st.sampled_from("ab$'\"\\`(){}[]<>|&;#=-~ \n0*@!?:"), max_size=40))
def test_any_shell_text_gives_a_recipe_or_a_sentence(text: str) -> None:
    with contextlib.suppress(RecipeError):
        every_use(read_text(f"{text} -m sglang.launch_server --model-path m {text}").recipe)


@pytest.mark.parametrize("name", FORMS)
def test_nothing_of_a_recipe_is_lost_that_a_form_has_no_word_for(name: str) -> None:
    recipe = loads_toml(
        '[server]\nport = 7\ntrust_remote_code = false\napi_key = "${KEY}"\n'
        "[memory]\nenable_elastic_memory_pool = true\n"
        '[environment]\nPATH = "/x:/y"\nB = "${A}/z"\nNO_PROXY = "h"\nA = "100% $y \\u2028"\n'
        '[api]\nbase_url = "https://gateway.example"\n[tuner]\nheadroom_gib = 3.5\nmodel_shape = "s"\n'
        "[other]\nx = [1, 2]\n"
    )
    text = FORMS[name](recipe, ())
    read = read_text(text, name)
    assert said(read.recipe) == said(recipe)
    assert FORMS[name](read.recipe, ()) == text


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "text", ["\x85", "a\u2028b", "\ufeffx", " ", "yes", "1", "a: b", "#", "\x1b[31m", "\n", "\r\n", "'\""]
)
def test_a_text_of_odd_characters_comes_back_as_it_was(name: str, text: str) -> None:
    recipe = Recipe(flags={"served_model_name": text})
    assert read_text(FORMS[name](recipe, ()), name).recipe.flags == recipe.flags
