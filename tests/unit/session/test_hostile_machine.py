"""A first run on a machine that means harm: pipes for files, links in circles, names too long, thousands of folders."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.modelfile import load_shape
from tuner.session import finding_here
from tuner.session.finding_here import Finder, Found, NotHere

LONG = "/x" * 5000
CONFIG = Path(finding_here.__file__).parents[1] / "shapes" / "qwen3-dense-small.json"


def model(folder: Path) -> str:
    folder.mkdir(parents=True)
    shutil.copy(CONFIG, folder / "config.json")
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    return str(folder)


@pytest.fixture
def finder(tmp_path: Path) -> Callable[..., Finder]:
    def made(**environ: str) -> Finder:
        return Finder(home=tmp_path / "home", environ=environ, root=tmp_path, cards=tuple, servers=list, limit_s=60)

    return made


def looked(finder: Finder) -> Found:
    """What is found, by a thread that need not be waited for: a look that hangs fails the test instead."""
    thread = threading.Thread(target=finder.look, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), f"hangs at {finder.found().at}"
    return finder.found()


def test_a_pipe_where_a_file_is_expected_holds_up_nothing(finder: Callable[..., Finder], tmp_path: Path) -> None:
    mine = model(tmp_path / "models/mine")
    hub = tmp_path / "home/.cache/huggingface/hub/models--a--b"
    cached = model(hub / "snapshots/1")
    for pipe in (
        tmp_path / "home/.conda/environments.txt",
        hub / "refs/main",
        tmp_path / "home/.venv/bin/python",
        tmp_path / "models/pipe/config.json",
    ):
        pipe.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(pipe)
    found = looked(finder())
    assert found.over and not found.cut
    assert {m.path for m in found.models} == {mine, cached}
    assert found.interpreters == ()


def test_a_config_of_a_gigabyte_is_passed_by(finder: Callable[..., Finder], tmp_path: Path) -> None:
    mine = model(tmp_path / "models/mine")
    (tmp_path / "models/big").mkdir()
    with (tmp_path / "models/big/config.json").open("wb") as file:
        file.truncate(1 << 30)
    assert [m.path for m in looked(finder()).models] == [mine]


def test_variables_that_name_nothing_that_can_be_looked_at_hold_up_nothing(
    finder: Callable[..., Finder], tmp_path: Path
) -> None:
    mine = model(tmp_path / "models/mine")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for odd in (LONG, str(tmp_path / "a"), "relative", "\udcff", " "):
        names = ("VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE", "PATH")
        assert mine in {m.path for m in looked(finder(**dict.fromkeys(names, odd))).models}


def test_thousands_of_folders_in_one_place_do_not_hide_the_models_in_the_next(
    finder: Callable[..., Finder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding_here, "_MOST_FOLDERS", 20)
    for number in range(50):
        (tmp_path / f"home/models/set{number}").mkdir(parents=True)
    mine = model(tmp_path / "models/mine")
    found = looked(finder())
    assert [m.path for m in found.models] == [mine]
    assert found.over and found.cut


@pytest.mark.parametrize("odd", [LONG, "\0", "~nobody-of-this-name/x", "\udcff", "", " ", "/dev/null"])
def test_an_odd_path_that_an_operator_writes_is_refused_in_one_sentence(
    finder: Callable[..., Finder], odd: str
) -> None:
    for ask in (finder().interpreter_at, finder().model_at):
        with pytest.raises(NotHere, match="There is no"):
            ask(odd)


def test_a_model_folder_that_may_not_be_entered_is_told_as_that(
    finder: Callable[..., Finder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(tmp_path / "models/mine")

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(finding_here, "load_shape", refuse)
    assert looked(finder()).models == ()
    with pytest.raises(NotHere, match=r"may not be looked into \(Permission denied\)"):
        finder().model_at(str(tmp_path / "models/mine"))


def test_the_shape_that_these_tests_copy_is_read() -> None:
    assert load_shape(CONFIG).architecture.endswith("ForCausalLM")
