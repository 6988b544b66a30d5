"""Bad files: one sentence that says what to do, whatever is in them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.recipe import Recipe, RecipeError, dumps_toml, load, loads_settings, loads_toml, merge_set, to_argv, to_shell
from tuner.recipe.checking import checked_variable

PRESETS = Path(__file__).parents[3] / "presets"
SETTINGS = '{"runtime": {"max_running_requests": 3, "schedule_policy": "lpm"}, "api": {"timeout_seconds": 120}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[memory]\nmem_fraction_static = \"abc\"\n", "memory.mem_fraction_static: mem_fraction_static cannot be"),
        ("[memory]\nmem_fraction_static = 1.7\n", "it takes a number above 0 and up to 1."),
        ("[memory]\nmem_fraction_static = -1\n", "it takes a number above 0 and up to 1."),
        ("[memory]\nmem_fraction_static = nan\n", "it takes a number above 0 and up to 1."),
        ("[scheduling]\nmax_running_requests = 0\n", "it takes a whole number of at least 1."),
        ("[server]\nport = \"30000\"\n", "it takes a whole number of at least 1 and up to 65535."),
        ("[server]\nmodel_path = 3\n", "it takes a text."),
        ("[server]\npython = 3\n", "server.python is 3; it takes a text."),
        ("[memory]\nmamba_ssm_dtype = \"fp8\"\n", "it takes one of float32, bfloat16, float16."),
        ("[cache]\nenable_prefix_caching = 1\n", "cache.enable_prefix_caching is 1; it takes true or false."),
        ("server = 3\n", "server is 3; it must be a table."),
        ("[env]\n\"A B\" = \"x\"\n", "is no name of an environment variable"),
        ("[env]\nA = true\n", "env.A is true; an environment variable takes a text in quotes."),
        ("[env]\nA = \"${1X}\"\n", "holds ${ without a variable name"),
        ("[tuner]\nlauncher = \"srun 'a\"\n", "tuner.launcher is \"srun 'a\"; it takes a command, with every quote"),
        ("[tuner]\nlauncher = \"${A}\"\n", "tuner.launcher is \"${A}\"; it takes a command, without variables."),
        ("[tuner]\nheadroom_gib = \"4\"\n", "tuner.headroom_gib is \"4\"; it takes a number of at least 0."),
        ("[tuner]\nneed_agents = 0\n", "tuner.need_agents is 0; it takes a whole number of at least 1."),
        ("[tuner]\nneed_warm_prefixes = true\n", "it takes a whole number of at least 0."),
        ("[tuner]\nneed_input_tokens = \"90K\"\n", "it takes a whole number of at least 1."),
        ("[tuner]\nchecks = \"speed\"\n", "it takes some of: thinking, non-thinking, tool call, prefix reuse."),
        ("[tuner]\nchecks = \",\"\n", "it takes some of: thinking, non-thinking, tool call, prefix reuse."),
        ("[tuner]\nchecks = [\"thinking\"]\n", "it takes a text."),
        ("[tuner]\nsglang_version = \"new\"\n", "it takes a version such as \"0.5.17\"."),
        ("[memory\n", "The file is not valid TOML at line 1, column 8:"),
        ("a = 1\na = 2\n", "The file is not valid TOML at line 2, column 6: cannot overwrite a value."),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loads_toml(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "settings.json is not valid JSON."),
        ('{\n "runtime": x}', "settings.json is not valid JSON at line 2, column 13."),
        ("[]", "settings.json must hold an object"),
        ('{"run": {}}', "settings.json has none of the sections runtime, mamba, logging, api."),
        ('{"runtime": {"max_running_requests": "many"}}', "it takes a whole number of at least 1."),
        ('{"api": {"timeout_seconds": -1}}', "api.timeout_seconds is -1; it takes a number of at least 0."),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        loads_settings(text, None)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        '[server]\napi_key = "hunter2hunter2"\n',
        '[server]\nadmin_api_key = "pre-${KEY}"\n',
        '[environment]\nHF_TOKEN = "hunter2hunter2"\n',
        '[api]\napi_key = "hunter2hunter2"\n',
        '[parsers]\ndefault_chat_template_kwargs = {password = "hunter2hunter2"}\n',
        '[api]\nbase_url = "https://me:hunter2hunter2@gateway.example"\n',
    ],
)
def test_a_secret_in_clear_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(RecipeError, match=r"holds a secret in clear: .* write \"\$\{") as refused:
        loads_toml(text)
    assert "hunter2" not in str(refused.value)


def test_a_secret_named_by_its_variable_is_fine() -> None:
    recipe = loads_toml('[server]\napi_key = "${MY_KEY}"\n')
    assert to_argv(recipe) == ["--api-key", "${MY_KEY}"]


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[server]\nmodel_path = '\xe9'\n")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    for name, said in (
        ("absent.toml", "cannot be read: No such file or directory"),
        ("latin.toml", "is not UTF-8 text"),
        ("notes.txt", "is neither a .toml, .json, .yaml or .service file nor a command that starts SGLang"),
        ("", "config.toml cannot be read"),
        ("a\0b.toml", "cannot be read"),
    ):
        with pytest.raises(RecipeError, match=said):
            load(f"{tmp_path}/{name}")


def test_a_file_with_a_byte_order_mark_and_windows_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes("\ufeff[server]\r\nport = 30001 # 端口\r\n".encode())
    recipe = load(tmp_path / "config.toml")
    assert recipe.port == 30001
    assert "port = 30002 # 端口\r\n" in dumps_toml(recipe.with_flags({"port": 30002}))


@pytest.mark.parametrize(
    "text",
    [
        "[flags]\nforward_hooks = " + "[" * 3000 + "]" * 3000 + "\n",
        "x = " + "{a=" * 3000 + "1" + "}" * 3000 + "\n",
        "[server]\nport = " + "9" * 5000 + "\n",
        "[server]\nport = 99999999999999999999999\n",
        "d = 9999-99-99\n",
        "x = " + "9" * 400 + "\n",
    ],
)
def test_absurd_documents_are_refused_or_kept(text: str) -> None:
    with contextlib.suppress(RecipeError):
        dumps_toml(loads_toml(text))


def every_use(recipe: Recipe) -> None:
    """All that can be done with a recipe; nothing but a sentence may come out."""
    for use in (to_argv, to_shell, dumps_toml):
        with contextlib.suppress(RecipeError):
            use(recipe)
    with contextlib.suppress(RecipeError):
        dumps_toml(recipe.with_flags({"port": 1, "max_mamba_cache_size": 9, "model_path": None}), ["x"])


def mutated(text: str) -> st.SearchStrategy[str]:
    pieces = st.sampled_from(
        ["[", "]", '"', "'''", "=", "\n", ".", "{", "}", ",", "#", "\0", "\x1b[31m", "${", "-1e999"]
    )

    def change(edits: list[tuple[int, int, str]]) -> str:
        result = text
        for at, length, new in edits:
            at %= len(result) + 1
            result = result[:at] + new + result[at + length :]
        return result

    edit = st.tuples(st.integers(0, 4000), st.integers(0, 30), pieces | st.text(max_size=8))
    return st.lists(edit, min_size=1, max_size=4).map(change)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(PRESETS.glob("*.toml"))).flatmap(lambda path: mutated(path.read_text(encoding="utf-8"))))
def test_a_mutated_config_gives_a_recipe_or_a_sentence(text: str) -> None:
    try:
        recipe = loads_toml(text)
    except RecipeError as refused:
        assert "\n" not in str(refused) and "\x1b" not in str(refused)
    else:
        every_use(recipe)


@settings(max_examples=250, deadline=None)
@given(mutated(SETTINGS))
def test_mutated_settings_give_a_recipe_or_a_sentence(text: str) -> None:
    try:
        recipe = loads_settings(text, Recipe(flags={"model_path": "m"}))
    except RecipeError as refused:
        assert "\n" not in str(refused)
    else:
        every_use(recipe)


@settings(max_examples=250, deadline=None)
@given(st.text(max_size=30) | mutated("speculative.num_steps=3") | mutated("environment.NAME=value"))
def test_any_assignment_is_done_or_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        every_use(merge_set(Recipe(flags={"model_path": "m"}), [text]))


def test_a_name_with_an_escape_sequence_is_told_without_it() -> None:
    with pytest.raises(RecipeError) as refused:
        checked_variable("\x1b[31mA\n", "x", "environment.\x1b[31mA\n")
    assert str(refused.value) == "environment.A is no name of an environment variable: use letters, digits and _."
