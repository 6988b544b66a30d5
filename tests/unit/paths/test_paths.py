"""Where the tuner keeps its files, and how a preset is found."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tuner.paths import Home, HomeError, find_preset, list_presets, packaged_presets
from tuner.recipe.model import RecipeError


def test_tuner_home_moves_everything(tmp_path: Path) -> None:
    home = Home.find({"TUNER_HOME": str(tmp_path / "h")})
    for path in (home.config, home.state, home.cache, home.logs, home.presets, home.servers, home.card(30000)):
        assert path.is_dir()
        assert path.is_relative_to(tmp_path / "h")
    assert home.database.parent == home.state


def test_without_tuner_home_the_platform_says_where() -> None:
    home = Home.find({})
    assert home.state_root.name == "tuner"


def test_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "new" / "home")
    for path in (home.servers, home.logs, tmp_path / "new" / "home"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_home_that_is_a_file_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(HomeError, match="TUNER_HOME"):
        _ = Home.at(tmp_path / "file").state


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_home_gives_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(HomeError, match="TUNER_HOME"):
        _ = Home.at(tmp_path / "h").state


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home.find({"TUNER_HOME": "here"}).state == tmp_path / "here" / "state"


def test_presets_are_found_by_name_by_presets_path_and_by_path(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    own = home.presets / "我的.toml"
    own.write_text("[server]\n", encoding="utf-8")
    elsewhere = tmp_path / "else.toml"
    elsewhere.write_text("[server]\n", encoding="utf-8")
    assert find_preset("我的", home) == own
    assert find_preset("我的.toml", home) == own
    assert find_preset("presets/我的.toml", home) == own
    assert find_preset(str(elsewhere), home) == elsewhere
    assert list_presets(home)["我的"] == own


def test_an_unknown_preset_lists_what_there_is(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    (home.presets / "mine.toml").write_text("", encoding="utf-8")
    with pytest.raises(RecipeError, match="mine"):
        find_preset("nothing", home)
    with pytest.raises(RecipeError, match="folder"):
        find_preset(str(tmp_path), home)


def test_the_packaged_presets_are_where_a_source_tree_or_a_wheel_has_them() -> None:
    assert packaged_presets().name == "presets"


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x.toml", "n" * 5000, "n/" * 4000])
def test_a_name_that_can_be_no_file_gives_one_short_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="can be no preset or file") as caught:
        find_preset(name, Home.at(tmp_path))
    assert len(str(caught.value)) < 300
