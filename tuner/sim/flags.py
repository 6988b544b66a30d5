"""The command line: SGLang's own flags from the catalogue, and switches of the stand-in that start with ``--sim-``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tuner.flags.catalogue import catalogue, is_in
from tuner.flags.model import FlagInfo
from tuner.flags.values import parse_value
from tuner.sim.faults import MEANING, Faults, parse_faults
from tuner.sim.hardware import Truth

VERSION = "0.5.17"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The ``--sim-`` switches."""

    card: Path | None = None
    shape: str | None = None
    speed: float = 1.0
    faults: Faults = Faults()
    free_gib: float | None = None
    truth: Truth = Truth()
    seed: int = 0
    #: Spread of times from request to request, and from server to server (as a share of the time).
    noise: float = 0.02
    round_noise: float = 0.0
    #: Fixed times in s for tests with known token times; None: from the model of the machine.
    ttft_s: float | None = None
    itl_s: float | None = None
    #: Compilation on first use, against the stand-in's usual; 0: none.
    compile_factor: float = 1.0
    #: Tokens/s of a cold prefill at an empty context.
    prefill_rate: float = 10_000.0
    acceptance: float = 0.8


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """Flags as asked, by underscore name, and the stand-in's own switches."""

    flags: dict[str, Any]
    options: Options


def _reader(info: FlagInfo) -> Callable[[str], Any]:
    kind = info.element if info.kind == "list" else info.kind
    word = msgspec.structs.replace(info, kind=kind, choices=(), least=None, most=None, above=None)

    def read(text: str) -> Any:
        return text if kind == "str" else parse_value(word, text)

    read.__name__ = kind
    return read


def _add_flag(parser: argparse.ArgumentParser, info: FlagInfo, taken: set[str]) -> None:
    spellings = [info.flag, *(f"--{alias.replace('_', '-')}" for alias in info.aliases)]
    names = [name for name in dict.fromkeys(spellings) if name not in taken]
    taken.update(names)
    if not names:
        return
    if info.kind == "bool":
        parser.add_argument(*names, dest=info.name, action="store_true", default=argparse.SUPPRESS)
        if info.negation:
            off = f"--{info.negation.removeprefix('--').replace('_', '-')}"
            taken.add(off)
            parser.add_argument(off, dest=info.name, action="store_false", default=argparse.SUPPRESS)
        return
    parser.add_argument(
        *names,
        dest=info.name,
        type=_reader(info),
        choices=list(info.choices) if info.choices else None,
        nargs="+" if info.kind == "list" else "?" if info.bare else None,
        const=True if info.bare and info.kind != "list" else None,
        default=argparse.SUPPRESS,
        required=info.name == "model_path",
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m tuner.sim``; unknown flags end it as they end SGLang (exit status 2)."""
    parser = argparse.ArgumentParser(
        prog="launch_server.py",
        usage="launch_server.py [-h] --model-path MODEL_PATH [SGLang 0.5.17 flags] [--sim-... switches]",
        description="A stand-in for an SGLang server. It takes SGLang's flags; its own switches start with --sim-.",
        epilog="faults: " + "; ".join(f"{fault}: {meaning}" for fault, meaning in MEANING.items()),
    )
    own = parser.add_argument_group("the stand-in")
    own.add_argument("--sim-card", type=Path, metavar="DIR", help="folder of the simulated card")
    own.add_argument("--sim-shape", metavar="NAME", help="packaged model shape to be, when the model is not here")
    own.add_argument("--sim-speed", type=float, default=1.0, metavar="FACTOR", help="1: ready in 4 s; 0: at once")
    own.add_argument("--sim-fault", action="append", default=[], metavar="NAME[:ARG]", help="may be given again")
    own.add_argument("--sim-free-gib", type=float, help="free memory before the start, instead of the card's")
    own.add_argument("--sim-context-gib", type=float, help="what the CUDA context takes")
    own.add_argument("--sim-startup-loss-gib", type=float, help="what goes before the weights, unseen by sizing")
    own.add_argument("--sim-weights-gib", type=float, help="weights of the target")
    own.add_argument("--sim-draft-weights-gib", type=float, help="weights of the draft")
    own.add_argument("--sim-draft-returned-gib", type=float, help="what the draft gives back after sizing")
    own.add_argument("--sim-loss-gib", type=float, default=0.0, help="lost after sizing")
    own.add_argument("--sim-graphs-factor", type=float, default=1.0, help="graph memory against the recordings")
    own.add_argument("--sim-seed", type=int, default=0)
    own.add_argument("--sim-noise", type=float, default=0.02, help="spread of times from request to request")
    own.add_argument("--sim-round-noise", type=float, default=0.0, help="spread of times from start to start")
    own.add_argument("--sim-ttft", type=float, metavar="S", help="every prefill takes this long")
    own.add_argument("--sim-itl", type=float, metavar="S", help="every decode step takes this long")
    own.add_argument(
        "--sim-compile", type=float, default=1.0, metavar="FACTOR", help="compilation on first use; 0: none"
    )
    own.add_argument("--sim-prefill-rate", type=float, default=10_000.0, metavar="TOKENS_PER_S")
    own.add_argument("--sim-acceptance", type=float, default=0.8, help="share of drafts accepted")
    taken: set[str] = set()
    for info in catalogue().values():
        if is_in(info, VERSION):
            _add_flag(parser, info, taken)
    return parser


def parse(argv: Sequence[str]) -> CommandLine:
    """Reads a command line. Raises SystemExit(2) as argparse does, with the reason on standard error."""
    parser = build_parser()
    given = vars(parser.parse_args(argv))
    own = {name.removeprefix("sim_"): given.pop(name) for name in list(given) if name.startswith("sim_")}
    if "config" in given:
        parser.error("the stand-in does not read --config: give the flags themselves")
    try:
        faults = parse_faults(own["fault"])
    except ValueError as error:
        parser.error(str(error))
    if own["speed"] < 0:
        parser.error("argument --sim-speed: must not be negative")
    truth = Truth(
        weights_gib=own["weights_gib"],
        draft_weights_gib=own["draft_weights_gib"],
        draft_returned_gib=own["draft_returned_gib"],
        loss_gib=own["loss_gib"],
        graphs_factor=own["graphs_factor"],
    )
    if own["context_gib"] is not None:
        truth = msgspec.structs.replace(truth, context_gib=own["context_gib"])
    if own["startup_loss_gib"] is not None:
        truth = msgspec.structs.replace(truth, startup_loss_gib=own["startup_loss_gib"])
    return CommandLine(
        flags=given,
        options=Options(
            card=own["card"],
            shape=own["shape"],
            speed=own["speed"],
            faults=faults,
            free_gib=own["free_gib"],
            truth=truth,
            seed=own["seed"],
            noise=own["noise"],
            round_noise=own["round_noise"],
            ttft_s=own["ttft"],
            itl_s=own["itl"],
            compile_factor=own["compile"],
            prefill_rate=own["prefill_rate"],
            acceptance=own["acceptance"],
        ),
    )
