"""A round as a file: marked when simulated, without secrets, written for the version it ran on."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from test_round_reports import round_

from tuner.metrics.model import Readings
from tuner.recipe import Recipe, read_text
from tuner.rounds.model import Round
from tuner.session.export import FORMATS, RECIPE_FORMATS, export, export_recipe
from tuner.session.fingerprint import fingerprint
from tuner.session.surroundings import kept_environment

NAMES = {
    "toml": "config.toml", "yaml": "a.yaml", "sh": "a.sh", "systemd": "a.service", "docker": "docker.sh",
}  # fmt: skip


def ran(**fields: object) -> Round:
    flags = {"model_path": "/models/m", "mem_fraction_static": 0.9, "api_key": "${KEY}", "max_running_requests": 3}
    recipe = Recipe(
        flags=flags, environment={"HF_TOKEN": "${HF_TOKEN}", "CUDA_VISIBLE_DEVICES": "3"}, python="/o/python"
    )
    known = {
        "recipe": recipe,
        "note": "started with --api-key sk-live-123456 显存",
        "tags": ("winner",),
        "sglang_version": "0.5.17",
        "environment": {"HF_TOKEN": "***"},
    }
    return round_(7, **{**known, **fields})


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_form_says_which_round_it_was_and_tells_no_secret(fmt: str) -> None:
    text = export(ran(), fmt)
    assert "123456" not in text and "winner" in text
    assert ("r7" in text) or fmt == "json"
    assert "SIMULATED" not in text


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_form_of_a_simulated_round_says_so(fmt: str) -> None:
    round_of_stand_in = ran(simulated=True, recipe=msgspec.structs.replace(ran().recipe, python="simulator"))
    text = export(round_of_stand_in, fmt)
    assert "SIMULATED" in text or json.loads(text)["simulated"] is True


@pytest.mark.parametrize("fmt", NAMES)
def test_every_form_is_read_back_and_written_the_same(fmt: str) -> None:
    text = export(ran(), fmt)
    read = read_text(text, NAMES[fmt])
    assert read.recipe.flags == ran().recipe.flags and read.recipe.python == "/o/python"
    assert export_recipe(read.recipe, fmt, read.head) == text


def test_settings_and_json_are_read_back_too() -> None:
    document = json.loads(export(ran(), "settings"))
    assert document["_round"][0] == "Round r7: verified." and document["runtime"] == {"max_running_requests": 3}
    assert read_text(export(ran(), "json"), "r7.json").recipe.flags == ran().recipe.flags


def test_docker_and_yaml_name_the_version_the_round_ran_on() -> None:
    assert "lmsysorg/sglang:v0.5.17 " in export(ran(), "docker")
    assert "-e HF_TOKEN \\" in export(ran(), "docker")
    assert "For SGLang 0.5.9:" in export(ran(sglang_version="0.5.9"), "yaml")
    assert "lmsysorg/sglang:latest" in export_recipe(ran().recipe, "docker")


def test_the_report_has_tables_and_charts_as_text() -> None:
    samples = [Readings(at=float(n), running=n % 4, kv_used_tokens=n * 1000) for n in range(200)]
    text = export(ran(), "md", samples)
    assert "### While it was watched" in text and "KV tokens used" in text and "up to 199,000" in text
    assert "| KV tokens |" in text and "### Environment" in text and "tags: winner" in text
    assert text.count("```") % 2 == 0


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no export format 'pdf': take one of toml"):
        export(ran(), "pdf")
    assert set(RECIPE_FORMATS) < set(FORMATS)


def test_a_model_is_known_by_its_files(tmp_path: Path) -> None:
    recipe = Recipe(flags={"model_path": str(tmp_path)})
    assert fingerprint(recipe) == {}
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "a.safetensors").write_bytes(b"header and weights")
    first = fingerprint(recipe)
    assert set(first) == {"config", "weights"} and all(len(value) == 16 for value in first.values())
    (tmp_path / "a.safetensors").write_bytes(b"Header and weights")
    assert fingerprint(recipe)["weights"] != first["weights"] and fingerprint(recipe)["config"] == first["config"]
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}', encoding="utf-8")
    indexed = fingerprint(recipe)
    (tmp_path / "a.safetensors").write_bytes(b"other")
    assert fingerprint(recipe) == indexed
    named = Recipe(flags={"model_path": "hub/name"})
    assert fingerprint(named) == {}
    assert fingerprint(msgspec.structs.replace(named, tuner=msgspec.structs.replace(named.tuner, model_shape="s"))) == {
        "shape": "s"
    }


def test_the_environment_of_a_start_is_kept_without_its_secrets() -> None:
    recipe = Recipe(environment={"A": "${B}", "SGLANG_X": "1"})
    environ = {"SGLANG_X": "0", "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "hf_abcdefghij0123456789", "HOME": "/root"}
    assert kept_environment(recipe, environ) == {
        "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "***", "SGLANG_X": "1", "A": "${B}",
    }  # fmt: skip
