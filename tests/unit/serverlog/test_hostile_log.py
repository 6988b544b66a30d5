"""Lines made to keep the reader busy: every one is read in a moment, and nothing else of the log is lost."""

from __future__ import annotations

import pytest

from tuner.redact import redact_text
from tuner.serverlog.model import Phase
from tuner.serverlog.reader import read_boot
from tuner.text import plain

LENGTH = 200_000
#: Some hundred times what any of these takes; before they were bounded each took minutes or hours.
pytestmark = pytest.mark.timeout(60)


STAMP = "[2026-07-01 10:00:00] "
LINES = {
    "weights with every part many times": "Load weight end. " + "elapsed=1 s, type=a, avail mem=1 GB, ",
    "summary with every part many times": "max_total_num_tokens=1,chunked_prefill_size=1,max_prefill_tokens=1,"
    "max_running_requests=1,",
    "starts of a summary": "max_total_num_tokens=1,",
    "starts of a capture": "Capture target decode cuda graph end. elapsed=",
    "starts of server arguments": "server_args=ServerArgs(",
    "a time-out of one long word": "x",
    "timings of one long name": "Engine startup timings (s): aaaaaaaa",
}


@pytest.mark.parametrize("unit", LINES.values(), ids=LINES.keys())
@pytest.mark.parametrize("tail", ["", " is not available in 1 seconds", " KV Cache"])
@pytest.mark.parametrize("stamp", ["", STAMP])
def test_a_line_made_to_be_slow_is_read_in_a_moment(unit: str, tail: str, stamp: str) -> None:
    line = stamp + unit * (LENGTH // len(unit)) + tail
    facts = read_boot(f"{line}\n{STAMP}Load weight begin. avail mem=46.50 GB\n")
    assert facts.free_before_gib == 46.5


@pytest.mark.parametrize("introducer", ["\x9d", "\x90", "\x98", "\x9e", "\x9f", "\x1b]", "\x1bP", "\x9b", "\x1b["])
def test_a_line_of_nothing_but_introducers_is_cleaned_in_a_moment(introducer: str) -> None:
    assert plain(introducer * LENGTH + "end").endswith("nd")


def test_a_sequence_of_controls_inside_another_leaves_none() -> None:
    assert plain("a\x9dtitle\x9d52;c;secret\x07b\x90q\x9fr\x9cc") == "atitlebqc"


@pytest.mark.parametrize("unit", ["--token", "api_key='", "authorization:", "Bearer ", "a://", "hf_a", 'token\\"='])
def test_secrets_are_sought_in_a_long_line_in_a_moment(unit: str) -> None:
    assert "hunter2" not in redact_text(unit * (LENGTH // len(unit)) + " api_key=hunter2")


def test_a_weights_line_keeps_all_of_its_parts() -> None:
    facts = read_boot(
        f"{STAMP}Load weight end. elapsed=12.5 s, type=Qwen3NextForCausalLM, avail mem=18.50 GB, mem usage=27.54 GB.\n"
    )
    assert (facts.model_class, facts.free_after_gib, facts.weights_gib) == (
        "Qwen3NextForCausalLM",
        18.5,
        {"target": 27.54},
    )
    assert facts.timings["load_weight"] == 12.5


UP = (
    f"{STAMP}max_total_num_tokens=1000, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=10, "
    f"context_len=1000, available_gpu_mem=3.00 GB\n"
    f"{STAMP}INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)\n"
    f"{STAMP}The server is fired up and ready to roll!\n"
)
SAID = (
    "SIGTERM sent by tuner: a stop was asked for.",
    "SIGTERM received. signum=15",
    f"{STAMP}SIGTERM sent by tuner: a stop was asked for.",
    f"{STAMP}Scheduler hit an exception: torch.OutOfMemoryError: CUDA out of memory",
)
BY_OTHERS = (
    "Receive: obj=GenerateReqInput(rid='a', text='why {0}')",
    "Finish: obj=GenerateReqInput(rid='a'), out={{'text': ' {0}'}}",
    '{{"event": "request.finished", "out": {{"text": "{0}"}}}}',
    'INFO:     127.0.0.1:40122 - "GET /x?q={0} HTTP/1.1" 404 Not Found',
    "The request of a client failed: {0}",
)


@pytest.mark.parametrize("line", BY_OTHERS[:3])
@pytest.mark.parametrize("said", SAID)
def test_what_a_client_or_a_model_wrote_is_no_word_of_the_server(line: str, said: str) -> None:
    assert read_boot(f"{UP}{STAMP}{line.format(said)}\n") == read_boot(UP)


@pytest.mark.parametrize("line", BY_OTHERS)
@pytest.mark.parametrize("said", SAID[:2])
def test_a_stop_that_others_speak_of_does_not_hide_a_crash(line: str, said: str) -> None:
    facts = read_boot(f"{UP}{STAMP}{line.format(said)}\n{STAMP}Scheduler hit an exception: Traceback\n")
    assert not facts.stop_asked
    assert facts.phase is Phase.DEAD
