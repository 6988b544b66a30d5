"""Reading a log of any size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.session import bootlog
from tuner.session.bootlog import read_log

MEASURED = Path(__file__).parents[2] / "data" / "measured"
RECORDED = MEASURED / "27b-48g-r15-full.log"


def test_a_log_that_is_gone_has_no_facts(tmp_path: Path) -> None:
    assert read_log(tmp_path / "gone.log") == (None, ())


def test_a_recorded_log_is_read_whole() -> None:
    facts, tail = read_log(RECORDED)
    assert facts is not None
    assert (facts.mamba_slots, facts.kv_tokens) == (57, 262294)
    assert tail


@pytest.mark.parametrize("filler", ["Decode batch, #running-req: 1 型\n", "x" * 4096])
def test_of_a_huge_log_the_start_and_the_end_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: str
) -> None:
    monkeypatch.setattr(bootlog, "_HEAD", 1 << 20)
    monkeypatch.setattr(bootlog, "_TAIL", 1 << 16)
    monkeypatch.setattr(bootlog, "_LONGEST_LINE", 1 << 12)
    log = tmp_path / "huge.log"
    with log.open("w", encoding="utf-8") as file:
        file.write(RECORDED.read_text(encoding="utf-8"))
        while file.tell() < 4 << 20:
            file.write(filler)
        file.write("\n[2026-11-29 15:52:22] 最后 the last words\n")
    read: list[int] = []
    feed = bootlog.BootReader.feed

    def counting(reader: bootlog.BootReader, text: str) -> None:
        read.append(len(text))
        feed(reader, text)

    monkeypatch.setattr(bootlog.BootReader, "feed", counting)
    facts, tail = read_log(log)
    assert facts is not None
    assert (facts.mamba_slots, facts.kv_tokens) == (57, 262294)
    assert "最后 the last words" in tail[-1]
    assert sum(read) <= (1 << 20) + (1 << 16) + 1


def test_what_is_no_file_has_no_facts_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for odd in (pipe, Path("/dev/zero"), tmp_path, Path("\0"), Path("/x" * 5000)):
        assert read_log(odd) == (None, ())
