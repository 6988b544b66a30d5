"""Values that would change the meaning of the file they are written to, and files that are none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tuner.place import expanded, there
from tuner.recipe import Recipe, RecipeError, TunerSettings, load, loads_toml, to_docker, to_shell, to_yaml
from tuner.recipe.script_file import loads_script
from tuner.recipe.yaml_file import loads_yaml

BREAKS = ["\x85", "\u2028", "\u2029", "\x1b", "\x07", "\n", "\x9b", "\ufeff"]


@pytest.mark.parametrize("letter", BREAKS)
def test_no_raw_control_character_stands_in_an_export_and_all_come_back(letter: str) -> None:
    recipe = Recipe(
        flags={"model_path": f"a{letter}b: 1{letter}port: 99", "served_model_name": f"it's {letter}0 \\ 模型"},
        environment={"FOO": f"x{letter}port: 99", "BAR": f"${{HOME}}{letter}"},
    )
    for written, read in ((to_yaml, loads_yaml), (to_shell, loads_script), (to_docker, loads_script)):
        text = written(recipe, [f"Round r1{letter}port: 99"])
        assert letter == "\n" or letter not in text
        back = read(text, "n").recipe
        assert (back.flags, back.environment) == (recipe.flags, recipe.environment)


def test_a_version_is_a_version_and_breaks_out_of_no_comment() -> None:
    with pytest.raises(RecipeError, match="it takes a version"):
        loads_toml('[server]\nmodel_path = "m"\n[tuner]\nsglang_version = "0.5.17\\u2028port: 99"\n')
    told = Recipe(flags={"model_path": "m"}, tuner=TunerSettings(sglang_version="0.5.17\x85port: 99"))
    with pytest.raises(RecipeError, match="it takes a version"):
        to_yaml(told)


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("flock")), reason="the start script needs both")
def test_variables_of_a_recipe_reach_the_server_and_not_the_script(tmp_path: Path) -> None:
    told = {
        "port": "1", "python": "/nowhere", "state": "s", "servers": "v", "address": "a", "log": "l", "tuner_port": "2",
        "UID": "7", "BASHOPTS": "b", "IFS": "t", "ESCAPED": "\x1b[31m1\u2028é", "MADE": "${KEY}-x", "TUNER_HOME": "/no",
    }  # fmt: skip
    fake = tmp_path / "python"
    fake.write_bytes(b"#!" + os.fsencode(shutil.which("env") or "") + b" -S sh -c 'env -0'\n")
    fake.chmod(0o755)
    path = tmp_path / "start.sh"
    recipe = Recipe(flags={"model_path": "m", "port": 39_999}, environment=told, python=str(fake))
    path.write_text(to_shell(recipe), encoding="utf-8")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KEY": "k"}
    done = subprocess.run(["bash", str(path)], env=environ, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    (log,) = (tmp_path / ".local" / "state" / "sglang").glob("port-39999-*.log")
    seen = dict(line.partition("=")[::2] for line in log.read_text(encoding="utf-8").split("\0"))
    # IFS is no variable that sh takes from its environment or gives on.
    assert {name: seen.get(name) for name in told if name != "IFS"} == {
        name: value for name, value in {**told, "MADE": "k-x"}.items() if name != "IFS"
    }


def test_a_secret_of_the_environment_is_on_no_command_line() -> None:
    text = to_shell(Recipe(flags={"model_path": "m"}, environment={"HF_TOKEN": "${HF_TOKEN}", "A": "1"}))
    assert re.search(r'^export HF_TOKEN="\$\{HF_TOKEN\}"$', text, re.MULTILINE)
    assert "exec env \\\n  A=1 \\\n" in text


def test_paths_of_no_user_and_names_too_long_are_nowhere(tmp_path: Path) -> None:
    assert expanded("~nosuch/x") == Path("~nosuch/x")
    for path in ("~nosuch/x", "a" * 5000, f"{tmp_path}/{'b' * 300}", "", "a\0b"):
        assert there(path) is None
    assert there(tmp_path) == tmp_path
    for path in ("~nosuch/x.toml", "a" * 5000):
        with pytest.raises(RecipeError, match="cannot be read"):
            load(path)


def test_only_regular_files_of_a_recipes_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("zero.toml", "pipe.toml"):
        with pytest.raises(RecipeError, match="no regular file"):
            load(tmp_path / name)
    (tmp_path / "long.toml").write_bytes(b"#" * 4_000_001)
    with pytest.raises(RecipeError, match="too large"):
        load(tmp_path / "long.toml")
