# ruff: noqa: E501  (log lines stay as printed)
"""Any cut, any byte, any wrapping: the same facts, and never an error."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tuner.serverlog.model import Phase
from tuner.serverlog.reader import BootReader, read_boot
from tuner.serverlog.records import MAX_LINE, LineCutter, records

MEASURED = Path(__file__).parents[2] / "data" / "measured"
R15 = (MEASURED / "27b-48g-r15-full.log").read_bytes().decode()
WHOLE = read_boot(R15)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(R15)), max_size=30))
def test_a_log_cut_anywhere_gives_the_same_facts_and_batches(cuts):
    one, many = BootReader(), BootReader()
    one.feed(R15)
    edges = [0, *sorted(cuts), len(R15)]
    for start, end in pairwise(edges):
        many.feed(R15[start:end])
    one.close()
    many.close()
    assert many.facts == one.facts == WHOLE
    assert many.batch_lines == one.batch_lines
    assert many.last_line == one.last_line


def test_a_log_fed_by_single_characters_gives_the_same_facts():
    reader = BootReader()
    for char in R15[: R15.index("Uvicorn running")]:
        reader.feed(char)
    reader.close()
    assert reader.facts.kv_tokens == 262294
    assert reader.facts.graphs_gib == WHOLE.graphs_gib


def test_a_number_cut_by_the_end_of_what_came_is_not_believed():
    reader = BootReader()
    reader.feed("[2026-01-01 00:00:00] Load weight begin. avail mem=4")
    assert reader.facts.free_before_gib is None
    reader.feed("6.83 GB\n")
    assert reader.facts.free_before_gib == 46.83


def test_the_last_line_counts_when_nothing_more_will_come():
    reader = BootReader()
    reader.feed("[2026-01-01 00:00:00] Load weight begin. avail mem=46.83 GB")
    reader.close()
    assert reader.facts.phase == Phase.LOADING


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=80),
            st.sampled_from(
                [
                    "server_args=ServerArgs(a=((('",
                    "server_args={'x': [",
                    "[2026-99-99 99:99:99] The server is fired up and ready to roll!\n",
                    "Uvicorn running on http://x\n",
                    "Load weight end. mem usage=1.0 GB",
                    "Mamba Cache is allocated. conv_state size: 9GB, ssm_state size: 9GB\n",
                    "KV Cache is allocated. #tokens: 5\n",
                    "Engine startup timings (s): cuda_graph={",
                    "Prefill batch, #new-token: 99999999999999999999999, ",
                    "max_total_num_tokens=1, context_len=2\n",
                    "Traceback (most recent call last):\nValueError\n",
                    "\r",
                    "\n",
                    "\x1b[31m",
                ]
            ),
        ),
        max_size=25,
    )
)
def test_no_input_makes_the_reader_fail(pieces):
    reader = BootReader()
    for piece in pieces:
        reader.feed(piece)
        assert isinstance(reader.facts.phase, Phase)
    reader.close()
    assert reader.facts == read_boot("".join(pieces))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_make_the_reader_fail(data):
    read_boot(data.decode(errors="replace"))
    read_boot(data.decode("latin-1"))


def test_a_line_without_an_end_takes_bounded_memory():
    cutter = LineCutter()
    for _ in range(40):
        assert list(cutter.feed("x" * 65536)) == []
    assert len(cutter.close()) == MAX_LINE


def test_an_endless_line_does_not_hide_what_follows():
    reader = BootReader()
    reader.feed("y" * (MAX_LINE * 2))
    reader.feed("\n[2026-01-01 00:00:00] Load weight begin. avail mem=46.83 GB\n")
    assert reader.facts.free_before_gib == 46.83


def test_a_record_glued_to_a_progress_bar_is_a_record_of_its_own():
    text = "Capturing num tokens (num_tokens=4096 avail_mem=5.07 GB):   0%|   | 0/50 [00:00<?, ?it/s][2026-11-29 15:51:47] Load weight begin. avail mem=46.83 GB"
    bar, record = records(text)
    assert bar.at is None
    assert record.at == "2026-11-29 15:51:47"
    assert record.text == "Load weight begin. avail mem=46.83 GB"


@pytest.mark.parametrize(
    ("line", "at", "ranks", "text"),
    [
        ("[2026-06-06 12:06:23 TP0 EP0] hello", "2026-06-06 12:06:23", "TP0 EP0", "hello"),
        ("[2026-06-06 12:06:23.123 DP1 TP1] hello", "2026-06-06 12:06:23", "DP1 TP1", "hello"),
        ("[TP3] hello", None, "TP3", "hello"),
        ("sglang-1  | \x1b[32m[2026-06-06 12:06:23]\x1b[0m hello", "2026-06-06 12:06:23", "", "hello"),
        ("[rank0]: error [/foo]", None, "", "[rank0]: error [/foo]"),
        ("模型 已加载", None, "", "模型 已加载"),
        ("api_key='hunter2'", None, "", "api_key='***'"),
    ],
)
def test_prefixes_of_all_kinds_are_cut_off(line, at, ranks, text):
    assert [(r.at, r.ranks, r.text) for r in records(line) if r.text.strip()] == [(at, ranks, text)]


def test_every_rank_prints_its_pools_and_the_first_rank_counts():
    text = "\n".join(
        f"[2026-01-01 00:00:0{n} TP{rank}] " + line.replace("{}", str(rank))
        for n, line in enumerate(
            [
                "Load weight begin. avail mem={} GB",
                "Load weight end. elapsed=1 s, type=X, avail mem=1{} GB, mem usage=8.8 GB.",
                "Mamba Cache is allocated. max_mamba_cache_size: 18{}, conv_state size: 0.10GB, ssm_state size: 4.38GB ",
                "KV Cache is allocated. #tokens: 32731{}, K size: 2.50 GB, V size: 2.50 GB",
            ]
        )
        for rank in (3, 1, 0, 2)
    )
    facts = read_boot(text)
    assert (facts.free_before_gib, facts.free_after_gib) == (0.0, 10.0)
    assert (facts.mamba_slots, facts.kv_tokens) == (180, 327310)
    assert facts.weights_gib == {"target": 8.8}
    assert facts.draft is None


def test_of_a_log_with_several_starts_the_last_one_counts():
    failed = (MEASURED / "27b-48g-fraction-too-low.log").read_bytes().decode()
    facts = read_boot(failed + R15)
    # The seconds to ready run from server_args then: what came before belongs to nobody.
    assert structs.replace(facts, timings={}) == structs.replace(WHOLE, timings={})
    assert read_boot(R15 + failed).phase == Phase.DEAD
    assert read_boot(R15 + failed).mamba_slots is None
