"""The stand-in as a real process: its endpoints, its memory, its ends, and what its faults do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tuner.metrics import parse_metrics
from tuner.serverlog.model import Phase
from tuner.serverlog.reader import read_boot

READY = "The server is fired up and ready to roll!"
WAIT_S = 60
SMALL = (
    *("--mem-fraction-static", "0.86", "--kv-cache-dtype", "fp8_e4m3", "--mamba-ssm-dtype", "bfloat16"),
    *("--max-running-requests", "3", "--mamba-radix-cache-strategy", "extra_buffer"),
    *("--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder"),
)


class StandIn:
    """One stand-in process, read line by line."""

    def __init__(self, port: int, card: Path, *switches: str) -> None:
        self.port, self.card = port, card
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tuner.sim", "--model-path", "demo/hybrid-27b", "--port", str(port), *SMALL),
                *("--sim-card", str(card), "--sim-speed", "0", *switches),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def until(self, text: str) -> None:
        with self._news:
            arrived = self._news.wait_for(
                lambda: any(text in line for line in self.lines) or self._closed, timeout=WAIT_S
            )
        assert arrived, f"waited in vain for {text!r}"
        assert any(text in line for line in self.lines), self.log[-3000:]

    def family(self) -> list[psutil.Process]:
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def ended(self) -> int:
        """Waits for the end and gives the exit status."""
        return self.process.wait(WAIT_S)

    def held_mib(self) -> dict[str, int]:
        """MiB by process name in the card's folder."""
        entries = [json.loads(p.read_bytes()) for p in self.card.glob("[0-9]*.json")]
        return {entry["name"]: entry["memory_mib"] for entry in entries}

    def chat(self, text: str, **more: Any) -> dict[str, Any]:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        answer = self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    def generate(self, ids: list[int], new: int = 4) -> dict[str, Any]:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": new}}
        answer = self.client.post("/generate", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


@pytest.fixture
def start(port: int, tmp_path: Path) -> Iterator[Any]:
    begun: list[StandIn] = []

    def begin(*switches: str, at: int | None = None, metrics: bool = True) -> StandIn:
        counted = ("--enable-metrics",) if metrics else ()
        begun.append(StandIn(at or port, tmp_path / "card", *counted, *switches))
        return begun[-1]

    yield begin
    for stand_in in begun:
        stand_in.client.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in stand_in.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        stand_in.process.wait(WAIT_S)


# --- a healthy one --------------------------------------------------------------------------------------------------


def test_it_starts_says_what_it_is_and_serves(start: Any) -> None:
    server = start()
    server.until(READY)
    assert server.log.startswith("SIMULATED SGLang")
    info, model = server.client.get("/server_info").json(), server.client.get("/model_info").json()
    assert info["simulated"] is model["simulated"] is True
    facts = read_boot(server.log)
    assert facts.ready
    assert facts.phase is Phase.READY
    assert info["max_total_num_tokens"] == facts.kv_tokens
    assert info["internal_states"][0]["max_mamba_cache_size"] == facts.mamba_slots
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == facts.max_running_requests
    assert server.client.get("/health").status_code == 200
    assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 262_144
    assert server.client.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 0
    assert server.client.get("/nowhere").json() == {"detail": "Not Found"}
    parse_metrics(server.client.get("/metrics").text)
    assert "The answer is 408." in server.chat("What is 17 * 24?")["content"]
    titles = {process.cmdline()[-1] for process in server.family()[1:]} | {
        word for process in server.family()[1:] for word in process.cmdline()
    }
    assert {"sglang::scheduler", "sglang::detokenizer"} <= titles


def test_three_tails_of_one_prefix_are_cached_as_recorded(start: Any) -> None:
    server = start()
    server.until(READY)
    prefix = list(range(1000, 9000))
    cached = [server.generate([*prefix, tail, 1, 2])["meta_info"]["cached_tokens"] for tail in (1, 2, 3)]
    assert cached == [0, 8000, 8000]
    metrics = server.client.get("/metrics").text
    assert 'mode="prefill_cache"' in metrics
    assert server.client.post("/flush_cache").status_code == 200
    assert server.generate([*prefix, 4, 1, 2])["meta_info"]["cached_tokens"] == 0


def test_too_long_an_input_is_refused_with_400(start: Any) -> None:
    server = start()
    server.until(READY)
    limit = server.client.get("/server_info").json()["max_req_input_len"]
    body = {"input_ids": list(range(limit)), "sampling_params": {"max_new_tokens": 1}}
    refused = server.client.post("/generate", json=body)
    assert refused.status_code == 400
    assert f"Input length ({limit} tokens) exceeds the maximum allowed length ({limit} tokens)" in refused.text
    body["input_ids"] = list(range(limit - 1))
    assert server.client.post("/generate", json=body).status_code == 200


def test_without_the_key_every_route_answers_as_recorded(start: Any) -> None:
    server = start("--api-key", "secret-key")
    server.until(READY)
    recorded = json.loads(
        (Path(__file__).parents[1] / "data" / "measured" / "tiny-api-key-no-metrics.json").read_text(encoding="utf-8")
    )["endpoints"]
    for path, answer in recorded.items():
        if path in ("/metrics", "/openapi.json"):
            continue
        seen = server.client.get(path)
        assert (path, seen.status_code, seen.text) == (path, answer["status"], answer["body"])
    assert server.client.get("/v1/models", headers={"Authorization": "Bearer secret-key"}).status_code == 200
    assert "secret-key" not in server.log


def test_metrics_are_not_found_unless_switched_on(start: Any) -> None:
    server = start(metrics=False)
    server.until(READY)
    answer = server.client.get("/metrics")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def _other_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nothing_listens_while_it_loads(start: Any) -> None:
    server = start("--sim-fault", "hang:capturing")
    server.until("Linear attention kernel backend")
    with pytest.raises(httpx.ConnectError):
        server.client.get("/health")
    assert server.held_mib()["sglang::scheduler"] > 30_000


def test_a_client_that_goes_away_ends_its_request(start: Any) -> None:
    server = start("--sim-itl", "0.05", "--sim-speed", "1")
    server.until(READY)
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 5000}, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as answer:
        next(answer.iter_lines())
    server.generate([5, 6, 7])
    assert "sglang:num_aborted_requests_total" in server.client.get("/metrics").text


# --- the ends -------------------------------------------------------------------------------------------------------


def test_sigterm_drains_and_ends_with_minus_nine_and_nothing_left(start: Any) -> None:
    server = start()
    server.until(READY)
    family = server.family()
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == -9
    assert gone(family)
    assert server.held_mib() == {}
    server.until("kill_process_tree called: parent_pid=")
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in server.log
    assert "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[]." in server.log


def test_sigterm_waits_for_requests_in_flight(start: Any) -> None:
    server = start("--sim-speed", "1", "--sim-itl", "0.02")
    server.until(READY)
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 40}, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.until("SIGTERM received")
        assert server.client.get("/health").status_code == 503
        assert list(lines)[-2:] != []
    assert server.ended() == -9


def test_a_server_whose_output_nobody_reads_any_more_still_stops(port: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tuner.sim", "--model-path", "demo/hybrid-27b", "--port", str(port), *SMALL]
    process = subprocess.Popen([*command, "--sim-speed", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(READY in line for line in process.stderr)
    process.stderr.close()
    process.terminate()
    assert process.wait(WAIT_S) == -9


def test_sigint_ends_with_zero(start: Any) -> None:
    server = start()
    server.until(READY)
    family = server.family()
    server.process.send_signal(signal.SIGINT)
    assert server.ended() == 0
    assert gone(family)
    assert "Finished server process" in server.log
    assert "include_parent=False" in server.log


def test_sigkill_takes_its_helpers_along(start: Any) -> None:
    server = start()
    server.until(READY)
    family = server.family()
    assert len(family) == 3
    server.process.kill()
    assert gone(family)


def test_sigterm_while_it_loads_ends_at_once(start: Any) -> None:
    server = start("--sim-fault", "hang:loading")
    server.until("Init torch distributed ends")
    family = server.family()
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == -15
    assert gone(family)


def test_a_scheduler_that_is_killed_takes_the_server_along(start: Any) -> None:
    server = start()
    server.until(READY)
    scheduler = next(p for p in server.family() if "sglang::scheduler" in p.cmdline())
    scheduler.kill()
    assert server.ended() == -9
    assert f"Subprocess scheduler_0 (pid={scheduler.pid}) crashed with exit code -9" in server.log


def test_a_taken_port_is_found_only_at_the_end_and_gives_three(start: Any) -> None:
    first = start()
    first.until(READY)
    second = start("--skip-server-warmup", "--sim-free-gib", "47.5")
    assert second.ended() == 3
    assert READY in second.log
    assert "ERROR:    [Errno 98] error while attempting to bind on address" in second.log
    assert first.client.get("/model_info").status_code == 200
    assert list(first.held_mib()) == ["sglang::scheduler"]


def test_a_second_one_on_the_same_card_finds_it_full(start: Any) -> None:
    first = start()
    first.until(READY)
    second = start(at=_other_port())
    assert second.ended() == -9
    assert "torch.OutOfMemoryError: CUDA out of memory" in second.log


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("refuse-at-sizing", -9, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache"),
        ("oom-in-capture", -9, "Capture cuda graph failed: CUDA out of memory"),
        ("die-at:Memory pool end", -9, "Memory pool end"),
        ("die-at:Uvicorn running on", -9, "Uvicorn running on"),
        ("die-at:Prefill batch", -9, "Prefill batch"),
        ("kernel-crash", -9, "triton.compiler.errors.CompilationError"),
        ("die-after-ready:0", -9, "Scheduler hit an exception"),
        ("die-silently:0", -9, READY),
    ],
)
def test_a_fatal_fault_ends_the_server_with_its_words(start: Any, fault: str, status: int, said: str) -> None:
    server = start("--sim-fault", fault)
    family = server.family()
    assert server.ended() == status
    server.until(said)
    assert gone(family)


@pytest.mark.parametrize(
    ("phase", "last"),
    [
        ("loading", "Ignore import error"),
        ("sizing", "Load weight end"),
        ("capturing", "GDN kernel dispatcher"),
        ("binding", "Engine startup timings"),
        ("warming", "Uvicorn running on"),
    ],
)
def test_it_can_hang_at_any_phase(start: Any, phase: str, last: str) -> None:
    server = start("--sim-fault", f"hang:{phase}")
    server.until(last)
    assert server.process.poll() is None
    assert READY not in server.log


def test_it_can_run_out_of_memory_while_serving(start: Any) -> None:
    server = start("--sim-fault", "oom-while-serving:1000")
    server.until(READY)
    server.generate([1, 2, 3])
    with contextlib.suppress(httpx.HTTPError):
        server.generate(list(range(1000)))
    assert server.ended() == -9
    assert "torch.OutOfMemoryError" in server.log


def test_it_can_stop_answering(start: Any) -> None:
    server = start("--sim-fault", "hang-while-serving")
    server.until(READY)
    assert server.client.get("/health").status_code == 503
    server.until("Health check failed. Server couldn't get a response from detokenizer")


def test_it_can_ignore_sigterm(start: Any) -> None:
    server = start("--sim-fault", "ignore-sigterm")
    server.until(READY)
    server.process.send_signal(signal.SIGTERM)
    assert server.client.get("/model_info").status_code == 200
    assert "SIGTERM received" not in server.log


def test_it_can_leave_a_child_behind(start: Any) -> None:
    server = start("--sim-fault", "orphan-child")
    server.until(READY)
    orphan = next(p for p in server.family() if "sglang::worker" in p.cmdline())
    server.process.send_signal(signal.SIGTERM)
    server.ended()
    assert orphan.is_running()
    assert os.getpgid(orphan.pid) == server.process.pid
    orphan.kill()


def test_it_can_keep_its_memory_after_its_end(start: Any) -> None:
    server = start("--sim-fault", "hold-vram:60")
    server.until(READY)
    holder = next(p for p in server.family() if "sglang::scheduler" in p.cmdline())
    server.process.send_signal(signal.SIGTERM)
    server.ended()
    assert server.held_mib()["sglang::scheduler"] > 30_000
    assert holder.is_running()
    holder.kill()


def test_it_can_flood_its_log(start: Any) -> None:
    server = start("--sim-fault", "flood-log:3000", "--sim-fault", "long-line:0.5")
    server.until(READY)
    assert sum(line.startswith("[weights] shard") for line in server.lines) == 3000
    assert max(map(len, server.lines)) >= 500_000


def test_it_can_misjudge_its_limit(start: Any) -> None:
    server = start("--sim-fault", "limit-off-by-one")
    server.until(READY)
    limit = server.client.get("/server_info").json()["max_req_input_len"]
    body = {"input_ids": list(range(limit - 1)), "sampling_params": {"max_new_tokens": 1}}
    assert server.client.post("/generate", json=body).status_code == 400
