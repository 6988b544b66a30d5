"""What can be compared over many rounds: each measure by a name, read from a round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec

from tuner.checks.model import Verdict
from tuner.measure.model import Load, Stat
from tuner.measure.stats import SAMPLES_FOR
from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import FIRST_ANSWERS, Round
from tuner.rounds.values import ACCEPTANCE, HIT_RATIO, number_text, percent_text, seconds_text, significant
from tuner.serverlog.model import BootFacts
from tuner.units import format_gib, format_tokens

Number = int | float


class Measure(msgspec.Struct, frozen=True):
    """A number of a round; ``better`` is +1 where more is better, -1 where less is, 0 where neither is."""

    name: str
    label: str
    read: Callable[[Round], Number | None]
    show: Callable[[float], str]
    better: int = 0
    #: Differs by up to 5 % between two rounds of the same settings.
    noisy: bool = False
    #: Where the samples of a latency are counted: field of the readings and percentile.
    samples: tuple[str, str] | None = None
    #: What must be the same of two rounds for their values to be compared.
    kind: Callable[[Round], object] = lambda _: None

    def enough(self, round_: Round) -> bool:
        """Whether a round has as many samples as the percentile needs."""
        if self.samples is None:
            return True
        spread = getattr(round_.readings, self.samples[0], None)
        return spread is not None and spread.count >= SAMPLES_FOR[self.samples[1]]


def longest_input_told(round_: Round) -> int | None:
    """Longest input in tokens that the server said it takes."""
    told = round_.effective.get("max_req_input_len")
    # ``/server_info``'s max_req_input_len (262,138 of a context of 262,144) is the shortest that is refused.
    return told - 1 if isinstance(told, int) and not isinstance(told, bool) else None


def longest_input(round_: Round) -> int | None:
    """Longest input in tokens that the server takes; of a round that told none, what was planned."""
    if (told := longest_input_told(round_)) is not None:
        return told
    if round_.boot is None or round_.boot.kv_tokens is None or round_.plan is None:
        return None
    return round_.plan.longest_input_tokens


def first_answers(round_: Round) -> float | None:
    """Seconds from ready until the tuner's first requests were answered; None where it sent none."""
    return round_.phase_seconds.get(FIRST_ANSWERS)


def terms(boot: BootFacts | None) -> dict[str, float]:
    """Shares of the card as the log prints them, GiB."""
    if boot is None:
        return {}
    found = {f"weights of the {part}": gib for part, gib in boot.weights_gib.items()}
    if boot.kv_gib is not None:
        found["KV pool"] = boot.kv_gib
    if boot.ssm_state_gib is not None:
        found["states"] = boot.ssm_state_gib + (boot.conv_state_gib or 0.0)
    if boot.spec_state_gib is not None:
        found["speculative states"] = boot.spec_state_gib + (boot.spec_conv_gib or 0.0)
    if boot.graphs_gib:
        found["graphs"] = sum(boot.graphs_gib.values())
    return found


def _boot(field: str) -> Callable[[Round], Number | None]:
    def read(round_: Round) -> Number | None:
        value = getattr(round_.boot, field, None)
        return value if isinstance(value, int | float) else None

    return read


def _reading(field: str, which: str = "") -> Callable[[Round], Number | None]:
    def read(round_: Round) -> Number | None:
        value = getattr(round_.readings, field, None)
        value = getattr(value, which, None) if which else value
        return value if isinstance(value, int | float) else None

    return read


def _vram(when: str) -> Callable[[Round], Number | None]:
    def read(round_: Round) -> Number | None:
        mib = round_.vram_mib.get(when)
        return None if mib is None else mib / 1024

    return read


def _term(name: str) -> Callable[[Round], Number | None]:
    return lambda round_: terms(round_.boot).get(name)


def _passed(round_: Round) -> int | None:
    return sum(check.verdict is Verdict.PASS for check in round_.checks) if round_.checks else None


def _load(round_: Round) -> Load | None:
    return round_.measurements[-1].load if round_.measurements else None


def _stat(field: str) -> Callable[[Round], Number | None]:
    """The median over the newest load on a round."""

    def read(round_: Round) -> Number | None:
        stat = getattr(round_.measurements[-1], field) if round_.measurements else None
        return stat.p50 if isinstance(stat, Stat) else None

    return read


def _rate(field: str) -> Callable[[Round], Number | None]:
    def read(round_: Round) -> Number | None:
        rates = getattr(round_.measurements[-1], field) if round_.measurements else ()
        return statistics.median(rates) if rates else None

    return read


def _tokens(value: float) -> str:
    return format_tokens(round(value))


#: In the order of tables. The names are what ``tuner chart`` takes.
MEASURES: tuple[Measure, ...] = (
    Measure("kv_tokens", "KV tokens", _boot("kv_tokens"), _tokens, 1),
    Measure("mamba_slots", "state slots", _boot("mamba_slots"), _tokens, 1),
    Measure("max_running_requests", "requests", _boot("max_running_requests"), _tokens, 1),
    Measure("longest_input_tokens", "longest input, tokens", longest_input, _tokens, 1),
    Measure("available_gib", "free at ready", free_at_ready_gib, format_gib, 0),
    Measure("vram_peak_gib", "VRAM, highest", _vram("peak"), format_gib, 0),
    Measure("vram_ready_gib", "VRAM at ready", _vram("ready"), format_gib, 0),
    Measure("target_gib", "weights of the target", _term("weights of the target"), format_gib, 0),
    Measure("draft_gib", "weights of the draft", _term("weights of the draft"), format_gib, 0),
    Measure("kv_gib", "KV pool", _term("KV pool"), format_gib, 0),
    Measure("states_gib", "states", _term("states"), format_gib, 0),
    Measure("spec_states_gib", "speculative states", _term("speculative states"), format_gib, 0),
    Measure("graphs_gib", "graphs", _term("graphs"), format_gib, 0),
    Measure("ready_seconds", "ready", lambda round_: round_.ready_seconds, seconds_text, -1, True),
    Measure("first_answers_seconds", FIRST_ANSWERS, first_answers, seconds_text, -1, True),
    Measure("checks_passed", "checks passed", _passed, _tokens, 1),
    Measure("ttft_p50", "TTFT p50", _reading("ttft_s", "p50"), seconds_text, -1, True, ("ttft_s", "p50")),
    Measure("ttft_p95", "TTFT p95", _reading("ttft_s", "p95"), seconds_text, -1, True, ("ttft_s", "p95")),
    Measure("itl_p50", "ITL p50", _reading("itl_s", "p50"), seconds_text, -1, True, ("itl_s", "p50")),
    Measure("itl_p95", "ITL p95", _reading("itl_s", "p95"), seconds_text, -1, True, ("itl_s", "p95")),
    Measure("prefix_hit_ratio", HIT_RATIO, _reading("prefix_hit_ratio"), percent_text, 1, True),
    Measure("acceptance_length", ACCEPTANCE, _reading("acceptance_length"), lambda v: number_text(ACCEPTANCE, v), 0),
    Measure("load_ttft_p50", "load: TTFT p50", _stat("ttft_s"), seconds_text, -1, True, kind=_load),
    Measure("load_itl_p50", "load: ITL p50", _stat("itl_s"), seconds_text, -1, True, kind=_load),
    Measure("load_output", "load: output, tokens/s", _rate("output_tokens_per_s"), significant, 1, True, kind=_load),
    Measure("load_good", "load: good requests/s", _rate("good_per_s"), significant, 1, True, kind=_load),
)


def measure(name: str) -> Measure | None:
    """The measure of that name, with dashes or underscores."""
    wanted = name.strip().replace("-", "_")
    return next((m for m in MEASURES if m.name == wanted), None)
