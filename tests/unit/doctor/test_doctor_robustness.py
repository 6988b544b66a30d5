"""Whatever a log holds, the doctor says something that is safe to show, and soon."""

from __future__ import annotations

import re
import time
from pathlib import Path

from case_table import CASES, case_log, diagnosed
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tuner
from tuner.doctor import diagnose_log
from tuner.findings import FindingId, Severity
from tuner.serverlog.model import BootFacts, Phase

QUOTED = sorted({line for path in CASES.glob("*.log") for line in case_log(path.stem)[1].splitlines()})


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.one_of(st.sampled_from(QUOTED), st.text(max_size=60)), max_size=25),
    died=st.booleans(),
)
def test_lines_in_any_order_give_findings_that_can_be_shown(lines: list[str], died: bool) -> None:
    found = diagnosed("\n".join(lines) + "\n", died=died, asked={"max_running_requests": 8}, card_gib=48.0)
    assert not died or len(found) == 1
    for one in found:
        assert one.title.endswith(".")
        assert all(len(line) <= 400 and "\x1b" not in line for line in one.evidence)
        assert sum(f.severity is Severity.FATAL for f in found) <= 1


@settings(max_examples=30, deadline=None)
@example(kv=0, slots=0, requests=0, context=0, gib=2.225073858507e-311)
@given(
    kv=st.integers(0, 10**9),
    slots=st.integers(0, 5_000),
    requests=st.integers(0, 5_000),
    context=st.integers(0, 10**7),
    gib=st.floats(0, 500),
)
def test_any_sizes_are_judged_without_trouble(kv: int, slots: int, requests: int, context: int, gib: float) -> None:
    facts = BootFacts(
        reached=Phase.READY,
        kv_tokens=kv,
        kv_gib=gib,
        mamba_slots=slots,
        ssm_state_gib=gib / 2,
        conv_state_gib=0.0,
        max_running_requests=requests,
        context_len=context,
        available_gib=gib / 3,
        free_before_gib=gib,
        hybrid=True,
        server_args={"mem_fraction_static": "0.9", "max_running_requests": "64"},
    )
    for one in diagnose_log(facts):
        fraction = one.flags.get("mem_fraction_static")
        assert fraction is None or 0.1 < fraction <= 0.98


def test_lines_made_to_be_slow_are_read_in_time() -> None:
    evil = ("state " * 600, "Capture " + "x" * 3_900, "elastic " * 500, "Tried to allocate 1 GiB " * 160, "(" * 4_000)
    began = time.process_time()
    diagnosed("\n".join(evil * 30), died=True)
    # 150 lines against some sixty patterns take a tenth of this; a pattern that backtracks would take hours.
    assert time.process_time() - began < 20


def test_no_id_is_without_a_rule() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in Path(tuner.__file__).parent.rglob("*.py")
        if path.name != "findings.py"
    )
    named = set(re.findall(r"FindingId\.([A-Z_]+)", source))
    assert {name for name in FindingId.__members__ if name not in named} == set()
