"""What a first run finds on a machine made of a few files, and what it makes of it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.metrics.model import GpuReading
from tuner.modelfile import load_shape
from tuner.paths import Home
from tuner.recipe import load
from tuner.recipe.model import Recipe
from tuner.recipe.server_answer import from_process
from tuner.server.cards import Foreign
from tuner.session.finding_here import Finder, Found, FoundInterpreter, FoundModel, FoundServer, NotHere, servers_here
from tuner.session.first_preset import keep_preset
from tuner.session.first_recipe import first_recipe, options, preset_name

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 1000, "torch_dtype": "bfloat16",
    "intermediate_size": 2048, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip


def environment(folder: Path, version: str | None = "0.5.17") -> str:
    """A virtual environment, with SGLang when there is a version."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    (folder / "pyvenv.cfg").touch()
    packages = folder / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "sglang_router-0.1.dist-info").mkdir()
    if version:
        (packages / f"sglang-{version}.dist-info").mkdir()
    return str(folder / "bin" / "python")


def model(folder: Path, *, weights: int = 1 << 30, **changes: object) -> str:
    """A model folder; its weights are a hole in the disk."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    if weights:
        header = json.dumps({"a": {"data_offsets": [0, weights]}}).encode()
        with (folder / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + weights)
    return str(folder)


def card(index: int, free_gib: int, total_gib: int = 48) -> GpuReading:
    return GpuReading(index=index, name="RTX 4090D", total_mib=total_gib * 1024, free_mib=free_gib * 1024)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Finder]:
    """A finder that sees only what is under ``tmp_path``."""

    def made(
        environ: dict[str, str] | None = None, servers: tuple[FoundServer, ...] = (), limit_s: float = 60.0
    ) -> Finder:
        return Finder(
            home=tmp_path / "home", environ=environ or {}, root=tmp_path, cards=lambda: [card(0, 40)],
            servers=lambda: list(servers), limit_s=limit_s,
        )  # fmt: skip

    return made


def looked(finder: Finder) -> Found:
    finder.look()
    found = finder.found()
    assert found.over or found.cut
    return found


def test_environments_with_sglang_are_found_wherever_people_keep_them(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    expected = {
        environment(tmp_path / place)
        for place in ("home/.venv", "home/work/.venv", "home/miniconda3/envs/sg", "opt/sglang", "opt/sg/.venv",
                      "workspace/venv", "home/.local/share/uv/tools/sglang", "elsewhere/told", "elsewhere/path")
    }  # fmt: skip
    environment(tmp_path / "home/other/.venv", version=None)
    (tmp_path / "home/.conda").mkdir()
    (tmp_path / "home/.conda/environments.txt").write_text(f"{tmp_path}/elsewhere/told\n/gone\n")
    found = looked(machine({"PATH": f"relative:{tmp_path}/elsewhere/path/bin"}))
    assert {i.path for i in found.interpreters} == expected
    assert {i.version for i in found.interpreters} == {"0.5.17"}


def test_the_interpreter_of_a_container_has_sglang_beside_it_or_in_the_home_folder(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3").touch()
    (tmp_path / "usr/local/lib/python3.12/dist-packages/sglang-0.5.16.dist-info").mkdir(parents=True)
    found = looked(machine())
    assert [(i.path, i.version) for i in found.interpreters] == [(str(tmp_path / "usr/bin/python3"), "0.5.16")]


def test_models_are_found_in_the_cache_of_hugging_face_and_in_common_folders(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    hub = tmp_path / "home/.cache/huggingface/hub/models--Qwen--Qwen3-4B"
    model(hub / "snapshots/old")
    kept = model(hub / "snapshots/new")
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text("new")
    plain = model(tmp_path / "models/mine")
    deep = model(tmp_path / "data/models/org/name")
    model(tmp_path / "models/embedding", architectures=["BertModel"])
    model(tmp_path / "models/no-weights", weights=0)
    (tmp_path / "models/broken").mkdir()
    (tmp_path / "models/broken/config.json").write_text("{")
    found = looked(machine())
    assert {(m.path, m.name) for m in found.models} == {(kept, "Qwen3-4B"), (plain, "mine"), (deep, "name")}
    assert all(m.weights_gib == pytest.approx(1, abs=0.01) and not m.hybrid for m in found.models)


def test_the_folders_that_variables_name_are_looked_into(machine: Callable[..., Finder], tmp_path: Path) -> None:
    one = model(tmp_path / "big/hub/models--a--b/snapshots/x")
    two = model(tmp_path / "scope/org/c")
    python = environment(tmp_path / "env")
    environ = {"HF_HOME": str(tmp_path / "big"), "MODELSCOPE_CACHE": str(tmp_path / "scope"),
               "VIRTUAL_ENV": str(tmp_path / "env")}  # fmt: skip
    found = looked(machine(environ))
    assert {m.path for m in found.models} == {one, two}
    assert [i.path for i in found.interpreters] == [python]


def test_the_running_servers_interpreter_and_model_are_found(machine: Callable[..., Finder], tmp_path: Path) -> None:
    python, folder = environment(tmp_path / "strange/env"), model(tmp_path / "strange/model")
    server = FoundServer(pid=7, port=30000, recipe=Recipe(flags={"model_path": folder}, python=python))
    found = looked(machine(servers=(server,)))
    assert [i.path for i in found.interpreters] == [python]
    assert [m.path for m in found.models] == [folder]
    assert options(found).settled


def test_a_machine_with_nothing_has_nothing(machine: Callable[..., Finder]) -> None:
    assert options(looked(machine())).nothing


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look at everything")
def test_a_folder_that_may_not_be_looked_at_has_nothing(machine: Callable[..., Finder], tmp_path: Path) -> None:
    model(tmp_path / "models/mine")
    (tmp_path / "models").chmod(0)
    try:
        assert looked(machine()).models == ()
    finally:
        (tmp_path / "models").chmod(0o700)


def test_a_link_that_leads_into_itself_ends_the_search_of_that_place_only(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    kept = model(tmp_path / "models/a/mine")
    (tmp_path / "models/loop").symlink_to(tmp_path / "models")
    assert kept in {m.path for m in looked(machine()).models}


def test_when_the_time_runs_out_what_was_found_stands_and_is_said_to_be_cut(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    model(tmp_path / "models/mine")
    finder = machine(limit_s=-1.0)
    found = looked(finder)
    assert found.cut
    assert found.gpus
    assert found.models == ()


def test_what_an_operator_writes_is_taken_or_refused_in_one_sentence(
    machine: Callable[..., Finder], tmp_path: Path
) -> None:
    finder = machine()
    python, folder = environment(tmp_path / "env"), model(tmp_path / "m")
    environment(tmp_path / "bare", version=None)
    assert finder.interpreter_at(f" {tmp_path}/env ").path == python
    assert finder.model_at(folder).name == "m"
    for ask, text, said in (
        (finder.interpreter_at, f"{tmp_path}/nowhere", "There is no interpreter"),
        (finder.interpreter_at, f"{tmp_path}/bare", "no SGLang is installed"),
        (finder.model_at, f"{tmp_path}/nowhere", "There is no folder"),
        (finder.model_at, f"{tmp_path}/env", "There is no"),
    ):
        with pytest.raises(NotHere, match=said):
            ask(text)


def found(*models: FoundModel, gpus: tuple[GpuReading, ...] = (card(0, 40),)) -> Found:
    return Found(models=models, gpus=gpus, over=True)


def a_model(name: str, *, gib: float = 20.0, hybrid: bool = False, at: float = 1.0) -> FoundModel:
    return FoundModel(path=f"/m/{name}", name=name, hybrid=hybrid, weights_gib=gib, changed_at=at)


def test_hybrids_that_fit_come_first_then_the_newest_and_what_does_not_fit_last() -> None:
    listed = options(
        found(a_model("big", gib=200, hybrid=True), a_model("old"), a_model("new", at=2.0), a_model("hyb", hybrid=True))
    ).models
    assert [m.name for m in listed] == ["hyb", "new", "old", "big"]


def test_the_newest_sglang_comes_first() -> None:
    versions = ("0.5.9", "0.5.17", "0.5.17.post1")
    seen = Found(interpreters=tuple(FoundInterpreter(path=f"/{v}", version=v) for v in versions), over=True)
    assert [i.version for i in options(seen).interpreters] == ["0.5.17.post1", "0.5.17", "0.5.9"]


@pytest.mark.parametrize(
    ("gpus", "gib", "tp", "devices"),
    [
        ((card(0, 40),), 20, None, None),
        ((card(0, 3), card(1, 47)), 20, None, "1"),
        ((card(0, 47), card(1, 47)), 60, 2, None),
        ((card(0, 1), card(1, 47), card(2, 47), card(3, 47)), 60, 2, "1,2"),
        ((card(0, 47), card(1, 47)), 500, 2, None),
        ((), 20, None, None),
    ],
)
def test_a_first_recipe_takes_the_fewest_cards_that_hold_the_model_the_freest_first(
    gpus: tuple[GpuReading, ...], gib: float, tp: int | None, devices: str | None
) -> None:
    recipe = first_recipe("/e/bin/python", "/m/x", "X", gib, gpus)
    assert recipe.flags.get("tp_size") == tp
    assert recipe.environment.get("CUDA_VISIBLE_DEVICES") == devices


def test_a_name_for_a_preset_is_safe_and_free() -> None:
    assert preset_name("Qwen/Qwen3.8 27B", ()) == "qwen-qwen3.8-27b"
    assert preset_name("千问-27B", ()) == "千问-27b"
    assert preset_name("../..", ()) == "first"
    assert preset_name("a", {"a", "a-2"}) == "a-3"


def test_the_preset_that_is_written_is_read_back_and_never_takes_anothers_place(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    recipe = first_recipe("/e/bin/python", "/m/x", "My Model", 1.0, ())
    first, second = keep_preset(home, recipe), keep_preset(home, recipe)
    assert [first.name, second.name] == ["my-model.toml", "my-model-2.toml"]
    read = load(first)
    assert (read.flags, read.python) == (recipe.flags, recipe.python)


def test_the_key_of_a_running_server_does_not_reach_the_preset(tmp_path: Path) -> None:
    words = ["/e/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/x", "--api-key", "sk-very-secret-1234"]
    recipe = from_process(words, {}, "/e/bin/python").recipe
    assert "very-secret" not in keep_preset(Home.at(tmp_path), recipe).read_text()


def test_what_only_has_the_title_of_sglang_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    left = Foreign(pid=os.getpid(), command="sglang::scheduler_TP0", port=30000, devices=None)
    monkeypatch.setattr("tuner.session.finding_here.running_sglang", lambda: [left])
    (server,) = servers_here()
    assert server.recipe is None
    assert server.problem == "It is titled sglang::scheduler_TP0: its flags cannot be read."


def test_the_shape_of_the_tests_own_model_is_read(tmp_path: Path) -> None:
    assert load_shape(model(tmp_path / "m")).architecture == "Qwen3ForCausalLM"
