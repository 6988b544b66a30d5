"""The stand-in takes SGLang's command line, and refuses what SGLang refuses."""

from __future__ import annotations

import pytest

from tuner.sim.faults import Fault, parse_faults
from tuner.sim.flags import parse

MODEL = ["--model-path", "demo/hybrid-27b"]


def test_flags_come_out_by_their_underscore_names_as_asked() -> None:
    flags = parse(
        [
            *MODEL,
            *("--mem-fraction-static", "0.86"),
            *("--max-running-requests", "3"),
            *("--kv-cache-dtype", "fp8_e4m3"),
            "--enable-metrics",
            *("--cuda-graph-bs-decode", "1", "2", "4"),
            *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
        ]
    ).flags
    assert flags == {
        "model_path": "demo/hybrid-27b",
        "mem_fraction_static": 0.86,
        "max_running_requests": 3,
        "kv_cache_dtype": "fp8_e4m3",
        "enable_metrics": True,
        "cuda_graph_bs_decode": [1, 2, 4],
        "default_chat_template_kwargs": {"enable_thinking": False},
    }


def test_an_old_spelling_sets_the_same_flag() -> None:
    assert parse([*MODEL, "--mamba-scheduler-strategy", "no_buffer"]).flags["mamba_radix_cache_strategy"] == "no_buffer"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*MODEL, "--enable-elastic-memory-pool"], "error: unrecognized arguments: --enable-elastic-memory-pool"),
        ([*MODEL, "--mem-fraction-static", "much"], "argument --mem-fraction-static: invalid float value: 'much'"),
        ([*MODEL, "--kv-cache-dtype", "fp7"], "argument --kv-cache-dtype: invalid choice: 'fp7'"),
        (["--port", "30000"], "the following arguments are required: --model-path"),
        ([*MODEL, "--sim-fault", "sulk"], "There is no fault 'sulk'"),
        ([*MODEL, "--sim-speed", "-1"], "--sim-speed: must not be negative"),
        ([*MODEL, "--config", "x.yaml"], "does not read --config"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_switches_of_the_stand_in_are_no_flags() -> None:
    command = parse([*MODEL, "--sim-speed", "0", "--sim-fault", "hang:sizing", "--sim-weights-gib", "28.5"])
    assert list(command.flags) == ["model_path"]
    assert command.options.speed == 0
    assert command.options.faults.text(Fault.HANG) == "sizing"
    assert command.options.truth.weights_gib == 28.5


def test_faults_have_arguments_with_defaults() -> None:
    faults = parse_faults(["die-after-ready", "hold-vram:3", "cache-off"])
    assert faults.number(Fault.DIE_AFTER_READY) == 1
    assert faults.number(Fault.HOLD_VRAM) == 3
    assert faults.has(Fault.CACHE_OFF)
    assert faults.number(Fault.BIND_LATE) is None


@pytest.mark.parametrize("text", ["hang:lunch", "bind-late:soon", "die-at", ""])
def test_a_fault_that_makes_no_sense_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z][^\n]+\.$"):
        parse_faults([text])
