"""YAML for SGLang's ``--config``: written for a version, and read.

``server_args_config_parser.py:ConfigArgumentMerger`` (0.5.9 to 0.5.23) turns each key into ``--key``: true into a bare
flag, a list into several words, everything else into ``str(value)``. It fills in no variables, and refuses options
whose action is not a plain store.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tuner.flags import FlagInfo, catalogue, lookup
from tuner.recipe import references
from tuner.recipe.argv import looks_like_a_flag, spelling, to_argv
from tuner.recipe.carried import carried_lines, head_lines, read_marks, shown, with_carried
from tuner.recipe.checking import CATALOGUE_VERSION, checked
from tuner.recipe.imported import Imported
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.shell import STAND_IN_NOTE
from tuner.recipe.slots import Slot
from tuner.recipe.toml_file import LONGEST
from tuner.recipe.words import Words
from tuner.text import plain

if TYPE_CHECKING:
    import yaml

#: Keys that 0.5.17 refuses because an old name shares their place, with the old name that it takes, if one is known
#: to work. Confirmed with the merger of that version.
_REFUSED = {
    "mamba_radix_cache_strategy": "mamba-scheduler-strategy",
    "cuda_graph_max_bs_decode": "cuda-graph-max-bs",
    "cuda_graph_bs_decode": None,
    "cuda_graph_bs_prefill": None,
    "cuda_graph_max_bs_prefill": None,
    "cuda_graph_backend_prefill": None,
    "cuda_graph_tc_compiler": None,
    "dsa_prefill_backend": None,
    "enable_linear_replayssm_spec": None,
    "incremental_streaming_output": None,
    "speculative_draft_window_size": None,
    "disable_cuda_graph": None,
    "lora_paths": None,
}
_NEW_NAMES = {old: new for new, old in _REFUSED.items() if old is not None}
_REFUSED_LATER = {"disable_cuda_graph": None, "lora_paths": None, "enable_dp_attention": None}
_RENAMES_END = (0, 5, 23)


def to_yaml(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """The recipe's flags as YAML for ``--config``; what the file cannot say stands in a comment as words to add."""
    recipe = checked(recipe)
    version = recipe.tuner.sglang_version or CATALOGUE_VERSION
    document: dict[str, Any] = {}
    said: set[Slot] = set()
    infos = catalogue()
    for name in [name for name in infos if name in recipe.flags]:
        value, info = recipe.flags[name], infos[name]
        key = _key(info, version)
        if key is None or not _can_say(info, value):
            continue
        document[key] = _plain(value)
        said.add(("flags", name))
    rest = {name: value for name, value in recipe.flags.items() if ("flags", name) not in said}
    words = to_argv(msgspec.structs.replace(recipe, flags=rest))
    note = [STAND_IN_NOTE] if recipe.simulated and STAND_IN_NOTE not in comments else []
    lines = [*head_lines([*comments, *note]), *carried_lines(recipe, said)]
    lines.append(f"# For SGLang {version}: python -m sglang.launch_server --config FILE" + _more(words))
    return "\n".join(lines) + "\n" + (_dumped(document) if document else "{}\n")


def loads_yaml(text: str, name: str = "") -> Imported:
    """The recipe of a YAML file for ``--config``; :class:`RecipeError` in one sentence."""
    called = name or "The file"
    document = _loaded(text, called)
    head, carried = read_marks(text)
    base = with_carried(Recipe(name=name), carried)
    remarks: list[str] = []
    reader = Words(msgspec.structs.replace(Recipe(name=name), tuner=base.tuner), remarks)
    words: list[str] = []
    for key, value in document.items():
        if value is None:
            remarks.append(f"{key} has no value and is left out.")
        elif isinstance(value, dict) and not _takes_json(str(key)):
            raise RecipeError(f"{called}: {plain(str(key))} is a table; SGLang's --config has no sections.")
        else:
            words += _words(_NEW_NAMES.get(str(key), str(key)), value, called)
        if "_" in str(key):
            remarks.append(f"SGLang's own --config does not take {key}: it wants hyphens.")
    recipe = reader.flags(words)
    recipe = msgspec.structs.replace(recipe, tuner=type(base.tuner)())
    return Imported(recipe=with_carried(recipe, carried), head=head, remarks=tuple(remarks))


def _key(info: FlagInfo, version: str) -> str | None:
    """The key that a version takes for a flag, or None when it takes it on the command line only."""
    later = _number(version) >= _RENAMES_END
    refused: Mapping[str, str | None] = _REFUSED_LATER if later else _REFUSED
    if info.negation is not None:
        return None
    if info.name in refused:
        return refused[info.name]
    return spelling(info, version).removeprefix("--")


def _can_say(info: FlagInfo, value: Any) -> bool:
    if value is False or value == []:
        return False
    if references.names(value if isinstance(value, str) else msgspec.json.encode(value).decode()):
        return False
    items = value if isinstance(value, list) and info.kind == "list" else [value]
    return not any(looks_like_a_flag(str(item)) for item in items)


def _plain(value: Any) -> Any:
    # A text of JSON goes through every version; a mapping only since 0.5.17.
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, dict | list) for v in value)):
        return msgspec.json.encode(value).decode()
    return value


def _more(words: list[str]) -> str:
    """Words in a comment: one line whatever is in them."""
    return " " + shown(" ".join(shlex.quote(word) for word in words)) if words else ""


def _dumped(document: dict[str, Any]) -> str:
    import yaml  # only this format needs it

    class Dumper(yaml.SafeDumper):
        """Writes texts with unusual characters in double quotes: PyYAML loses U+0085 and its kind in others."""

    def text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')

    Dumper.add_representer(str, text_node)
    text: str = yaml.dump(
        document,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=1 << 30,
        line_break="\n",
    )
    return text


def _loaded(text: str, called: str) -> dict[Any, Any]:
    import yaml  # only this format needs it

    if len(text) > LONGEST:
        raise RecipeError(f"{called} is too long for a recipe: {len(text):,} characters.")
    try:
        document = yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = plain(error.problem or error.context or "it cannot be read").replace("\n", " ")
        raise RecipeError(f"{called} is not valid YAML{at}: {what}.") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{called} is not valid YAML: {' '.join(plain(str(error)).split())}.") from None
    except RecursionError:
        raise RecipeError(f"{called} is nested too deeply for a recipe.") from None
    except (ValueError, OverflowError):
        raise RecipeError(f"{called} holds a number or date that cannot be.") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise RecipeError(f"{called} must hold keys and values, as SGLang's --config wants them.")
    return document


def _loader() -> type[yaml.SafeLoader]:
    import yaml  # only this format needs it

    class Loader(yaml.SafeLoader):
        """Refuses references: a few lines of them can stand for more than a machine holds."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.get_mark()
                raise yaml.composer.ComposerError(None, None, "references (*name) are not read", mark)
            node: yaml.Node | None = super().compose_node(parent, index)
            return node

    return Loader


def _words(key: str, value: Any, called: str) -> list[str]:
    flag = "--" + key.replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return []
    if isinstance(value, dict) or (isinstance(value, list) and _takes_json(key)):
        return [flag, _json(value, key, called)]
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, list | dict) for item in items):
        raise RecipeError(f"{called}: {plain(key)} holds a list or table in a list, which no flag takes.")
    words = ["None" if item is None else str(item) for item in items]
    if len(words) == 1 and looks_like_a_flag(words[0]):
        return [f"{flag}={words[0]}"]
    return [flag, *words]


def _json(value: Any, key: str, called: str) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise RecipeError(f"{called}: {plain(key)} holds something that JSON has no word for.") from None


def _takes_json(key: str) -> bool:
    info = lookup(key)
    return info is not None and info.kind == "json"


def _number(version: str) -> tuple[int, ...]:
    digits = ("".join(letter for letter in part if letter.isdigit()) for part in version.split(".")[:3])
    return tuple(int(part or 0) for part in digits)
