"""A bare GPU machine as its operator has it: a wheel to install, an interpreter with SGLang, a command line.

Nothing here imports the tuner: it is installed from wheels and driven by its commands alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: VRAM of an idle card moves by this much.
TOLERANCE_MIB = 64

#: Run by the interpreter that has PyTorch: holds all of the card but so many GiB until it is ended.
_BALLAST = """
import sys, time, torch
torch.zeros(1, device="cuda")
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - int(float(sys.argv[1]) * 2**30)), dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(86400)
"""


class Tuner:
    """The command line, with a home of its own."""

    def __init__(self, python: str, site: Path | None, home: Path) -> None:
        self._argv = [python, "-m", "tuner"]
        self.environment = {**os.environ, "TUNER_HOME": str(home)}
        if site is not None:
            self.environment["PYTHONPATH"] = str(site)

    def __call__(self, *words: str) -> tuple[int, Any]:
        """Exit status and JSON answer of ``tuner words``."""
        done = subprocess.run(
            [*self._argv, *words, "--json"], env=self.environment, stdout=subprocess.PIPE, text=True, check=False
        )
        try:
            return done.returncode, json.loads(done.stdout)
        except json.JSONDecodeError:
            return done.returncode, {"error": done.stdout.strip() or "no answer"}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """The same, not waited for."""
        return subprocess.Popen(
            [*self._argv, *words, "--json"], env=self.environment, stdout=subprocess.PIPE, text=True
        )


def options(description: str) -> argparse.ArgumentParser:
    """What every script here is told about the machine."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder with the wheels of the tuner and of what it needs")
    parser.add_argument("--python", help="interpreter that has SGLang")
    parser.add_argument("--model", help="model folder")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the server")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="flag of every start")
    parser.add_argument("--card-gib", type=float, help="leave only so much of the card free, as on a smaller one")
    parser.add_argument("--gpu", help="the one GPU to use, by its number; the others are another's")
    parser.add_argument("--home", type=Path, help="keep the tuner's home here, so that another command can look at it")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--out", type=Path, help="write what was found here, as JSON")
    parser.add_argument("--sim", action="store_true", help="rehearse this script on the stand-in server")
    return parser


@contextmanager
def installed(asked: argparse.Namespace) -> Iterator[Tuner]:
    """The tuner from ``--wheels`` in a folder of its own (else as installed here), with a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        site = None
        if asked.wheels is not None:
            site = Path(folder) / "site"
            wheels = sorted(map(str, asked.wheels.glob("*.whl")))
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(site)]
            subprocess.run([*pip, *wheels], check=True)
        yield Tuner(sys.executable, site, asked.home or Path(folder) / "home")


@contextmanager
def smaller_card(asked: argparse.Namespace) -> Iterator[None]:
    """Another process holds the card's memory but for ``--card-gib``: the pools come out as on a card of that size."""
    if asked.card_gib is None or asked.python is None:
        yield
        return
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": asked.gpu} if asked.gpu else {})}
    ballast = [asked.python, "-c", _BALLAST, str(asked.card_gib)]
    held = subprocess.Popen(ballast, env=environment, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    try:
        if held.stdout.readline().strip() != "held":
            raise SystemExit("The card's memory could not be held.")
        yield
    finally:
        held.kill()
        held.wait()


def recipe(tuner: Tuner, asked: argparse.Namespace, preset: str, into: Path) -> list[str]:
    """``preset``, shipped or a file, set to this machine, as the words that name it to ``tuner run`` and its like."""
    shipped = {known["name"]: known["path"] for known in tuner("presets")[1]}
    status, answer = tuner("import", shipped.get(preset, preset), "-o", str(into))
    if status:
        raise SystemExit(f"{preset} could not be imported: {answer}")
    text = into.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("CUDA_VISIBLE_DEVICES")]
    pairs = [*asked.env, *([f"CUDA_VISIBLE_DEVICES={asked.gpu}"] if asked.gpu else [])]
    given = [f"{name} = {json.dumps(value)}" for name, _, value in (pair.partition("=") for pair in pairs)]
    at = next((n for n, line in enumerate(lines) if line.strip() == "[environment]"), None)
    if at is None:
        lines += ["", "[environment]", *given]
    else:
        lines[at + 1 : at + 1] = given
    into.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sets = [f"port={asked.port}", *([f"model_path={asked.model}"] if asked.model else []), *asked.set]
    sets += ["python=simulator"] if asked.sim else [f"python={asked.python}"] if asked.python else []
    return [str(into), *(word for pair in sets for word in ("--set", pair))]


def vram_mib(gpu: str | None = None) -> list[int]:
    """Used memory of each GPU, or of one, from nvidia-smi: not the tuner's own reading. Empty where there is none."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", *(["-i", gpu] if gpu else [])]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in done.stdout.split()]


def missing_mib(before: Sequence[int], after: Sequence[int]) -> int:
    """How much of a card did not come back, at the worst; 0 where there is none."""
    return max((late - early for early, late in zip(before, after, strict=True)), default=0)


def in_flight(url: str, tokens: int, agents: int, new_tokens: int = 64) -> dict[str, Any]:
    """``agents`` fresh prompts of ``tokens`` ids sent at once, by plain HTTP: what each got, and how many ran together.

    Not the tuner's own proof but one beside it.
    """
    answers: list[dict[str, Any]] = [{} for _ in range(agents)]
    seed = time.time_ns() % 7000

    def ask(number: int) -> None:
        ids = [100 + (seed + k * 31 + number * 977) % 7000 for k in range(tokens)]
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": new_tokens, "ignore_eos": True}}
        began = time.monotonic()
        try:
            meta = _json(f"{url}/generate", body)["meta_info"]
            answers[number] = {
                "prompt_tokens": meta["prompt_tokens"],
                "completion_tokens": meta["completion_tokens"],
                "retractions": meta.get("num_retractions", 0),
                "seconds": round(time.monotonic() - began, 1),
            }
        except (urllib.error.URLError, KeyError, ValueError, TimeoutError) as error:
            answers[number] = {"error": f"{type(error).__name__}: {error}"}

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(agents)]
    for thread in threads:
        thread.start()
    together = 0
    while any(thread.is_alive() for thread in threads):
        try:
            loads = _json(f"{url}/v1/loads")["loads"]
            together = max(together, sum(load.get("num_running_reqs", 0) for load in loads))
        except (urllib.error.URLError, KeyError, ValueError, TimeoutError):
            continue  # a busy server may miss a look
        finally:
            time.sleep(0.2)
    return {"answers": answers, "together": together}


def _json(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as Markdown, ready for the README."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
