"""Long runs of serving lines are read at once; nothing may come out otherwise than line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.serverlog.quiet import RUN
from tuner.serverlog.reader import BootReader

MEASURED = Path(__file__).parents[2] / "data" / "measured"
STAMP = "[2026-11-29 15:52:22] "
DECODE = (
    STAMP
    + "Decode batch, #running-req: 3, #full token: 6110, full token usage: 0.02, mamba num: 9, mamba usage: 0.16, "
    "accept len: 1.77, accept rate: 0.77, cuda graph: True, gen throughput (token/s): 141.76, #queue-req: 0\n"
)
PREFILL = (
    "[2026-11-29 15:52:23 TP0] Prefill batch [12], #new-seq: 1, #new-token: 128, #cached-token: 4096, "
    "#running-req: 1, #queue-req: 2, cuda graph: False, input throughput (token/s): 1.17\r\n"
)
ACCESS = 'INFO:     127.0.0.1:49624 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
ODD = [
    "[2026-02-30 15:52:22] Decode batch, #running-req: 1\n",
    STAMP + "Decode batch, #running-req: 3, api_key='hunter2'\n",
    STAMP + "Decode batch, #running-req: 3, " + STAMP + "Load weight begin. avail mem=46.83 GB\n",
    'INFO:     127.0.0.1:49624 - "GET /v1/models?key=sk-live-123456 HTTP/1.1" 200 OK\n',
    STAMP + "Scheduler hit an exception: Traceback\n",
    "Traceback (most recent call last):\n",
    "ValueError: x\n",
    " 10%|#   | 1/10\r",
    "模型 \x1b[31m\n",
    STAMP + "The server is fired up and ready to roll!\n",
]


def seen(reader: BootReader) -> tuple[object, ...]:
    reader.close()
    return reader.facts, reader.batch_lines, reader.tail, reader.last_line


def line_by_line(text: str) -> BootReader:
    reader = BootReader()
    for line in text.splitlines(keepends=True):
        reader.feed(line)
    return reader


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from([DECODE * 9, PREFILL * 9, (DECODE + ACCESS) * 5, DECODE, ACCESS * 8, *ODD])),
    cut=st.integers(1, 3000),
)
def test_a_run_reads_as_its_lines_do(lines: list[str], cut: int) -> None:
    text = "".join(lines)
    reader = BootReader()
    for at in range(0, len(text), cut):
        reader.feed(text[at : at + cut])
    assert seen(reader) == seen(line_by_line(text))


@pytest.mark.parametrize("path", sorted(MEASURED.glob("*.log")), ids=lambda path: path.stem)
def test_a_recorded_start_followed_by_hours_of_serving_keeps_its_facts(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace").rstrip("\n") + "\n" + (PREFILL + DECODE) * 200
    whole = BootReader()
    whole.feed(text)
    assert seen(whole) == seen(line_by_line(text))


def test_serving_lines_of_every_kind_are_in_one_run() -> None:
    text = (DECODE + PREFILL + ACCESS + STAMP + ACCESS) * 100
    (run,) = RUN.finditer(text)
    assert run[0] == text


@pytest.mark.parametrize("odd", ODD)
def test_a_line_that_says_more_ends_a_run(odd: str) -> None:
    assert all(odd not in run[0] for run in RUN.finditer(DECODE * 20 + odd + DECODE * 20) if odd != ODD[0])
