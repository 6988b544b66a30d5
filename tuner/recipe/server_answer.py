"""The flags of a running server, from its ``/server_info`` or from its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.flags import FlagValueError, catalogue, check_value
from tuner.recipe.environment import LOOKED_AT
from tuner.recipe.imported import Imported
from tuner.recipe.model import Recipe, RecipeError, TunerSettings
from tuner.recipe.script_file import read_command, server_command
from tuner.recipe.words import Words, with_interpreter

#: Fields of ``/server_info`` that 0.5.17 fills in itself, whatever was asked (seen on a real one).
_OWN_CHOICES = frozenset(
    {
        "cuda_graph_config", "device", "dsa_prefill_cp_mode", "encoder_transfer_backend",
        "expert_distribution_recorder_buffer_size", "grammar_backend", "load_balance_method", "mm_feature_transport",
        "nccl_port", "nsa_prefill_cp_mode", "prefill_cp_mode", "random_seed", "speculative_moe_runner_backend",
    }
)  # fmt: skip


def from_server_info(answer: Mapping[str, Any], name: str = "") -> Imported:
    """The recipe that ``/server_info`` tells: every flag that differs from its default.

    A server tells what it runs with, which may be its own choice; a remark says so. Secrets are not in it.
    """
    version = answer.get("version")
    known = isinstance(version, str) and version[:1].isdigit() and "." in version
    recipe = Recipe(name=name, tuner=TunerSettings(sglang_version=str(version)) if known else TunerSettings())
    flags: dict[str, Any] = {}
    for info in catalogue().values():
        value = answer.get(info.dest or info.name)
        if value is None or value in ([], {}, "") or info.secret or info.name in _OWN_CHOICES:
            continue
        if value == info.default and isinstance(value, bool) == isinstance(info.default, bool):
            continue
        if (info.name, value) == ("page_size", 1) or (value is False and not info.default):
            continue
        try:
            flags[info.name] = check_value(info, value, any_choice=True)
        except FlagValueError:
            continue
    if flags.get("tokenizer_path") == flags.get("model_path"):
        flags.pop("tokenizer_path", None)
    if not flags.get("model_path"):
        raise RecipeError("The answer names no model: it is not the /server_info of an SGLang server.")
    remark = "A server tells what it runs with: where you left a choice to it, the recipe now has what it chose."
    return Imported(recipe=recipe.with_flags(flags), remarks=(remark,))


def from_process(words: Sequence[str], environ: Mapping[str, str], python: str, name: str = "") -> Imported:
    """The recipe of a server's process: its words exactly, and of its environment what SGLang looks at.

    ``python`` is the full path of its interpreter.
    """
    command = server_command(list(words))
    if command is None:
        raise RecipeError("That process is no SGLang server: its command line starts none.")
    read = read_command(command, Recipe(name=name))
    remarks = [remark for remark in read.remarks if "looked up on PATH" not in remark]
    reader = Words(read.recipe, remarks)
    kept = {k: v for k, v in environ.items() if k.startswith(LOOKED_AT) and "${" not in v}
    recipe = reader.environment(kept)
    if not recipe.simulated and python:
        recipe = with_interpreter(recipe, python)
    return Imported(recipe=recipe, remarks=tuple(remarks))
