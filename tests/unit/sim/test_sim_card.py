"""The simulated card and the progress bars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.sim.bars import capture_frames, frame
from tuner.sim.card import CardError, CardSlot
from tuner.sim.children import spawn


def test_a_fresh_card_has_48_gb_and_47_and_a_half_free(tmp_path: Path) -> None:
    slot = CardSlot(tmp_path / "card")
    assert slot.free_gib() == pytest.approx(47.5, abs=0.01)
    described = json.loads((tmp_path / "card" / "card.json").read_bytes())
    assert described == {"name": "Simulated 48 GB", "total_mib": 49140, "reserved_mib": 500}


def test_what_one_process_holds_the_next_one_misses(tmp_path: Path) -> None:
    first, second = CardSlot(tmp_path), CardSlot(tmp_path)
    first.attach(os.getpid())
    first.publish(10.0)
    assert second.free_gib() == pytest.approx(37.5, abs=0.01)
    assert first.free_gib() == pytest.approx(47.5, abs=0.01)
    entry = json.loads((tmp_path / f"{os.getpid()}.json").read_bytes())
    assert entry["memory_mib"] == 10_240
    assert entry["create_time"] == psutil.Process().create_time()
    first.remove()
    assert second.free_gib() == pytest.approx(47.5, abs=0.01)


def test_the_dead_hold_nothing_and_are_cleared_away(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    slot = CardSlot(tmp_path)
    slot.attach(child.pid)
    slot.publish(20.0)
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert CardSlot(tmp_path).free_gib() == pytest.approx(47.5, abs=0.01)
    assert list(tmp_path.glob("[0-9]*.json")) == []


def test_a_card_described_by_someone_else_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"name": "Other", "total_mib": 24564, "reserved_mib": 300}')
    assert CardSlot(tmp_path).free_gib() == pytest.approx(23.7, abs=0.01)


def test_a_folder_that_cannot_be_used_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("not json")
    with pytest.raises(CardError, match="cannot be used"):
        CardSlot(tmp_path)


def test_without_a_folder_nothing_is_published() -> None:
    slot = CardSlot(None)
    slot.attach(os.getpid())
    slot.publish(3.0)
    slot.remove()
    assert slot.others_gib() == 0


def test_a_helper_carries_its_title_and_ends_with_the_pipe() -> None:
    child = spawn("sglang::scheduler")
    assert "sglang::scheduler" in psutil.Process(child.pid).cmdline()
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(30) == 0


def test_bars_look_like_the_recorded_ones() -> None:
    name = "Capturing num tokens (num_tokens=4096 avail_mem=5.07 GB)"
    assert frame("", 0, 50, 0.0) == "\r  0%|          | 0/50 [00:00<?, ?it/s]"
    assert frame(name, 1, 50, 3.14) == f"\r{name}:   2%|▏         | 1/50 [00:03<02:33,  3.14s/it]"
    bs = "Capturing batches (bs=1 avail_mem=3.29 GB)"
    assert frame(bs, 3, 3, 5.2) == f"\r{bs}: 100%|██████████| 3/3 [00:05<00:00,  1.73s/it]"


def test_a_capture_counts_down_its_sizes_and_prints_the_last_frame_twice() -> None:
    texts = list(capture_frames("batches (bs", [1, 2, 3], [3.36, 3.30, 3.29], 6.0))
    assert len(texts) == 4
    assert texts[0].endswith("Capturing batches (bs=3 avail_mem=3.36 GB):   0%|          | 0/3 [00:00<?, ?it/s]")
    assert texts[-1].endswith("\n")
    assert texts[-1].count("100%|██████████| 3/3") == 2
