"""What the stand-in prints is read like a real log, and on the recorded machine gives the recorded numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.serverlog.model import BootFacts, Phase
from tuner.serverlog.reader import read_boot
from tuner.sim.__main__ import main
from tuner.sim.bootlog import Died
from tuner.sim.card import CardSlot
from tuner.sim.flags import CommandLine, parse
from tuner.sim.model import resolve
from tuner.sim.service import Built
from tuner.sim.sizing import set_up
from tuner.sim.startup import Start

MEASURED = Path(__file__).parents[2] / "data" / "measured"
MODEL = ["--model-path", "demo/hybrid-27b", "--mem-fraction-static"]
CARD_GIB = 143_771 / 1024


def boot(argv: list[str], *, card_gib: float = 49_140 / 1024, free_gib: float = 47.5) -> Built:
    command: CommandLine = parse([*argv, "--sim-speed", "0"])
    model = resolve(command.flags, command.options)
    setup = set_up(command.flags, model, command.options, card_gib=card_gib, free_gib=free_gib, environment={})
    return Start(command, model, setup, CardSlot(None)).run(scheduler_pid=1)


def recorded(name: str) -> tuple[dict[str, Any], BootFacts]:
    scenario = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))["scenario"]
    return scenario, read_boot((MEASURED / f"{name}.log").read_text(encoding="utf-8"))


ROUNDS = [
    "27b-48g-fp32-frac086",
    "27b-48g-bf16-frac086",
    "27b-48g-bf16-frac086-ratio03",
    "27b-48g-bf16-frac095-slots24",
    "27b-48g-bf16-frac098-mtp",
    "27b-48g-r15-full",
]


@pytest.mark.parametrize("name", ROUNDS)
def test_a_recorded_round_comes_out_as_recorded(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, real = recorded(name)
    boot(["--model-path", "demo/hybrid-27b", *scenario["flags"]], card_gib=CARD_GIB)
    seen = read_boot(capsys.readouterr().err)
    assert seen.version == real.version
    assert (seen.mamba_slots, seen.max_running_requests) == (real.mamba_slots, real.max_running_requests)
    assert seen.kv_tokens == pytest.approx(real.kv_tokens, rel=0.002)
    assert (seen.context_len, seen.chunked_prefill_size) == (real.context_len, real.chunked_prefill_size)
    assert seen.kv_dtype == real.kv_dtype
    for field in (
        "free_before_gib",
        "free_after_gib",
        "conv_state_gib",
        "ssm_state_gib",
        "kv_gib",
        "spec_state_gib",
        "spec_conv_gib",
        "free_after_pools_gib",
        "free_after_draft_pools_gib",
        "available_gib",
    ):
        assert getattr(seen, field) == pytest.approx(getattr(real, field), abs=0.02), field
    assert seen.weights_gib == pytest.approx(real.weights_gib, abs=0.0101)
    assert seen.graphs_gib == pytest.approx(real.graphs_gib, abs=0.0101)
    assert seen.tree_cache == real.tree_cache


def test_unified_memory_comes_out_as_recorded_up_to_the_kernel_that_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario, real = recorded("27b-48g-unified-memory-fails")
    built = boot(["--model-path", "demo/hybrid-27b", *scenario["flags"]], card_gib=CARD_GIB)
    seen = read_boot(capsys.readouterr().err)
    assert (seen.mamba_slots, seen.max_running_requests) == (real.mamba_slots, real.max_running_requests)
    assert seen.kv_tokens == pytest.approx(real.kv_tokens, rel=0.002)
    assert (seen.kv_gib, seen.ssm_state_gib) == (real.kv_gib, real.ssm_state_gib) == (None, None)
    assert seen.free_after_pools_gib == pytest.approx(real.free_after_pools_gib, abs=0.02)
    assert seen.available_gib == pytest.approx(real.available_gib, abs=0.02)
    assert built.setup.kernel_missing


def test_unified_memory_with_16_bit_kv_has_its_kernel() -> None:
    assert not boot([*MODEL, "0.9", "--enable-unified-memory", "--kv-cache-dtype", "bf16"]).setup.kernel_missing


def test_a_model_that_is_not_there_ends_the_start_as_transformers_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-path", "/no/such/model"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("OSError: Incorrect path_or_model_id: '/no/such/model'.")


def test_the_log_says_the_same_as_the_plan_it_was_sized_by(capsys: pytest.CaptureFixture[str]) -> None:
    built = boot([*MODEL, "0.9", "--max-running-requests", "8"])
    seen, plan = read_boot(capsys.readouterr().err), built.pools.plan
    assert (seen.mamba_slots, seen.kv_tokens) == (plan.mamba_slots, plan.kv_tokens)
    assert seen.max_running_requests == plan.max_running_requests
    assert seen.free_before_gib == pytest.approx(46.83, abs=0.005)
    assert seen.available_gib == pytest.approx(built.available_gib, abs=0.005)


def test_a_plain_model_prints_no_state_lines(capsys: pytest.CaptureFixture[str]) -> None:
    boot(["--model-path", "x", "--sim-shape", "qwen3-dense-small", "--mem-fraction-static", "0.5"])
    text = capsys.readouterr().err
    seen = read_boot(text)
    assert seen.mamba_slots is None
    assert seen.kv_tokens
    assert "impl=RadixCache hybrid_swa=False hybrid_ssm=False" in text
    assert "Mamba" not in text


def test_the_first_line_says_that_nothing_here_is_real(capsys: pytest.CaptureFixture[str]) -> None:
    boot([*MODEL, "0.9"])
    assert capsys.readouterr().err.startswith("SIMULATED SGLang 0.5.17")


def test_records_are_glued_to_progress_bars_as_in_the_recordings(capsys: pytest.CaptureFixture[str]) -> None:
    boot([*MODEL, "0.9", "--kv-cache-dtype", "fp8_e4m3"])
    text = capsys.readouterr().err
    assert "\rCapturing num tokens (num_tokens=4096 avail_mem=" in text
    assert "?it/s][" in text


def test_a_key_never_reaches_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    built = boot([*MODEL, "0.9", "--api-key", "very-secret"])
    assert built.values["api_key"] == "very-secret"
    text = capsys.readouterr().err
    assert "very-secret" not in text
    assert "api_key='***'" in text


def test_a_fraction_too_low_is_refused_in_the_recorded_words(capsys: pytest.CaptureFixture[str]) -> None:
    scenario, _ = recorded("27b-48g-fraction-too-low")
    with pytest.raises(Died) as died:
        boot(["--model-path", "demo/hybrid-27b", *scenario["flags"]], card_gib=CARD_GIB)
    error = died.value.out.text
    real = (MEASURED / "27b-48g-fraction-too-low.log").read_text(encoding="utf-8")
    sentence = (
        "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-13"
    )
    assert sentence in error
    assert sentence in real
    assert "mamba_cache_per_req=74.81 MB" in error


def test_a_pool_too_small_for_a_request_is_refused() -> None:
    with pytest.raises(Died) as died:
        boot([*MODEL, "0.9", "--max-mamba-cache-size", "2", "--mamba-radix-cache-strategy", "extra_buffer"])
    assert "state cache is too small to serve any requests" in died.value.out.text


def test_graphs_that_do_not_fit_end_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Died) as died:
        boot([*MODEL, "0.9", "--cuda-graph-backend-prefill", "breakable", "--sim-loss-gib", "4.0"])
    assert "CUDA out of memory" in died.value.out.text
    assert read_boot(capsys.readouterr().err).phase is Phase.CAPTURING


def test_prefill_graphs_nobody_asked_for_are_left_out_when_memory_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    boot([*MODEL, "0.97", "--max-running-requests", "3"])
    text = capsys.readouterr().err
    assert "Disabling auto-selected prefill CUDA graph: only" in text
    assert list(read_boot(text).graphs_gib) == ["decode"]


def test_fewer_requests_than_asked_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    built = boot([*MODEL, "0.86", "--max-running-requests", "40", "--mamba-radix-cache-strategy", "extra_buffer"])
    seen = read_boot(capsys.readouterr().err)
    assert seen.requests_capped_to == built.pools.plan.max_running_requests < 40
    assert seen.slots_per_request == 5


def test_the_hidden_truth_moves_what_the_log_shows(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*MODEL, "0.86"]
    boot(argv)
    plain = read_boot(capsys.readouterr().err)
    boot([*argv, "--sim-weights-gib", "29", "--sim-graphs-factor", "1.5", "--sim-free-gib", "46"])
    hidden = read_boot(capsys.readouterr().err)
    assert hidden.weights_gib["target"] == pytest.approx(29.0, abs=0.006)
    assert hidden.free_before_gib == pytest.approx(45.33, abs=0.006)
    assert (hidden.kv_tokens or 0) < (plain.kv_tokens or 0)
    assert hidden.graphs_gib["decode"] > plain.graphs_gib["decode"]


def test_weights_that_do_not_fit_run_out_of_memory_while_loading() -> None:
    with pytest.raises(Died) as died:
        boot([*MODEL, "0.9"], free_gib=20.0)
    assert "torch.OutOfMemoryError: CUDA out of memory" in died.value.out.text
