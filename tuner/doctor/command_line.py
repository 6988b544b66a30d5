"""Deaths of the command line and of what it names: flags, values, modules, models, parts that exclude each other."""

from __future__ import annotations

import re

from tuner.doctor.case import LogCase, finding
from tuner.doctor.cause import Cause, told_by_a_line
from tuner.findings import Finding, FindingId, Severity
from tuner.flags import lookup, suggest

_UNKNOWN_ARGUMENT = re.compile(r": error: unrecognized arguments: (?P<flags>.*)")
_WRONG_VALUE = re.compile(r": error: argument (?P<flag>[^:]+): (?P<why>.*)|: error: (?P<other>.*)")
_NO_MODULE = re.compile(r"(?:ModuleNotFoundError: |python[\d.]*: )No module named ['\"]?(?P<module>[\w.]+)")
_NO_MODEL = re.compile(
    r"Can't load the configuration of|does not appear to have a file named config\.json|Repo id must be in the form|"
    r"is not a local folder and is not a valid model identifier|No such file or directory: '[^']*config\.json|"
    r"Incorrect path_or_model_id|LocalEntryNotFoundError|Cannot find any model weights|Model path .* does not exist"
)
_CONTEXT = re.compile(
    r"User-specified context_length \((?P<asked>\d+)\) is greater than the derived context_length \((?P<most>\d+)\)"
)
_APART = "Two flags of the recipe do not go together."
_BUFFER = {"mamba_radix_cache_strategy": "extra_buffer"}


def unknown_flag(case: LogCase) -> Finding | None:
    """A flag or a value that this SGLang does not take."""
    if seen := case.find(_UNKNOWN_ARGUMENT):
        flags = re.findall(r"--[\w-]+", seen.match["flags"])
        hint = "".join(f" {words}" for flag in flags if (words := _about(flag)))
        return finding(
            FindingId.UNKNOWN_FLAG,
            Severity.FATAL,
            f"This SGLang does not know {', '.join(flags) or 'a flag of the recipe'}.",
            evidence=(seen.line,),
            remedy=f"Take the flag out of the recipe, or write it as this version spells it.{hint}",
            flags={flag[2:].replace("-", "_"): None for flag in flags},
        )
    if seen := case.find(_WRONG_VALUE):
        names = [part.strip() for part in (seen.match["flag"] or "").split("/") if part.strip().startswith("--")]
        info = lookup(names[0]) if names else None
        choices = f" It takes: {', '.join(map(str, info.choices))}." if info and info.choices else ""
        return finding(
            FindingId.UNKNOWN_FLAG,
            Severity.FATAL,
            f"This SGLang does not take the value of {names[0]}."
            if names
            else "This SGLang does not take the command line.",
            evidence=(seen.line,),
            remedy=f"Correct the value in the recipe.{choices}",
        )
    return None


def _about(flag: str) -> str:
    """What is known of a flag that was refused: which versions have it, or which real one is near. Else ""."""
    near = suggest(flag)
    info = lookup(near) if near else None
    if info is None:
        return ""
    if info.flag != flag:
        return f"Nearest to {flag}: {info.flag}."
    if info.until is not None:
        return f"SGLang had {flag} until {info.until}."
    return f"SGLang has {flag} from {info.since} on." if info.since is not None else ""


def module_missing(case: LogCase) -> Finding | None:
    """A Python module that the interpreter of the recipe lacks."""
    seen = case.find(_NO_MODULE)
    if not seen:
        return None
    module = seen.match["module"].split(".")[0]
    return finding(
        FindingId.MODULE_MISSING,
        Severity.FATAL,
        f"The server's Python has no module {module}.",
        evidence=(seen.line,),
        remedy="Set [server] python in the recipe to the interpreter of the environment that has SGLang."
        if module == "sglang"
        else f"Install {module} into the environment of the server's interpreter.",
    )


def model_missing(case: LogCase) -> Finding | None:
    """A model folder that is not there, or has no config or weights."""
    seen = case.find(_NO_MODEL)
    return seen and finding(
        FindingId.MODEL_MISSING,
        Severity.FATAL,
        "The model cannot be found or is not complete.",
        evidence=(seen.line, f"model_path: {case.argument('model_path') or 'not told'}"),
        remedy="Set model_path to a folder that holds config.json and the weights.",
    )


def context_too_long(case: LogCase) -> Finding | None:
    """A context length that the model does not have."""
    seen = case.find(_CONTEXT)
    if not seen:
        return None
    most = int(seen.match["most"])
    return finding(
        FindingId.FLAG_CONFLICT,
        Severity.FATAL,
        f"The model has no context of {seen.match['asked']} tokens.",
        evidence=(seen.line,),
        remedy=f"Ask for a context_length of at most {most}, or leave it out.",
        flags={"context_length": most},
    )


#: Combinations that die of an assertion, nearest remedy with each (0.5.4 to 0.5.23).
flags_apart = told_by_a_line(
    Cause(id=FindingId.FLAG_CONFLICT, line=line, title=_APART, remedy=remedy, flags=flags)
    for line, remedy, flags in (
        (
            r"functional_call got multiple values for keys",
            "Leave cpu_offload_gb out: it breaks the tied parameters of linear-attention layers.",
            {"cpu_offload_gb": None},
        ),
        (
            r"--startup-weight-load-mode=overlap is not supported",
            "Leave startup_weight_load_mode out.",
            {"startup_weight_load_mode": None},
        ),
        (
            r"Page size must be 1 for MambaRadixCache|MambaComponent requires page_size=1|"
            r"no_buffer only supports page_size=1",
            "Leave page_size out, or use the extra_buffer strategy.",
            {"page_size": None},
        ),
        (
            r"assert isinstance\(params\.token_to_kv_pool_allocator, TokenToKVPoolAllocator\)",
            "The prefix cache of models with states takes pages of one token here: leave page_size out, or use the "
            "extra_buffer strategy.",
            {"page_size": None},
        ),
        (
            r"is not compatible with radix cache when using|no_buffer do not support overlap schedule|"
            r"Lazy extra buffer requires overlap",
            "Use the extra_buffer strategy.",
            _BUFFER,
        ),
        (
            r"extra_buffer is not supported",
            "Use the no_buffer strategy.",
            {"mamba_radix_cache_strategy": "no_buffer"},
        ),
        (
            r"(?i)speculative.{0,40}(?:roll ?back|rewind).{0,40}(?:error|fail|unsupported|not supported)",
            "Use the speculative algorithm that the model is made for (NEXTN for a built-in head), or none.",
            {"speculative_algorithm": None},
        ),
    )
)
