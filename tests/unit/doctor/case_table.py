"""Every recording and every public case that quotes a log line, with what the doctor should find and what it finds.

``EXPECTED`` lists all findings, the first one first; whatever else is found above a note is a false one. A case with
several logs has one row for each. ``NO_LOG`` are the cases that quote no line of a log, or none that tells anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tuner.doctor import diagnose_log
from tuner.findings import Finding, Severity
from tuner.serverlog.reader import BootReader

DATA = Path(__file__).parents[2] / "data"
CASES = DATA / "cases"

RECORDED: dict[str, tuple[str, ...]] = {
    "measured/27b-48g-fp32-frac086": ("pool-below-context", "prefix-cache-off", "ratio-misfit", "kv-scale-missing"),
    "measured/27b-48g-bf16-frac086": ("pool-below-context", "prefix-cache-off", "ratio-misfit", "kv-scale-missing"),
    "measured/27b-48g-bf16-frac086-ratio03": ("prefix-cache-off", "kv-scale-missing"),
    "measured/27b-48g-bf16-frac095-slots24": ("low-headroom", "prefix-cache-off", "kv-scale-missing"),
    "measured/27b-48g-bf16-frac098-mtp": ("pool-below-context", "spec-eats-pool", "kv-scale-missing"),
    "measured/27b-48g-r15-full": ("low-headroom", "pool-below-context", "spec-eats-pool", "kv-scale-missing"),
    "measured/27b-48g-unified-memory-fails": ("kernel-crash",),
    "measured/27b-48g-fraction-too-low": ("slots-negative",),
    "measured/dense-small": ("memory-idle",),
    "measured/tiny-api-key-no-metrics": ("prefix-cache-off", "metrics-off", "memory-idle"),
    "measured/tiny-auto-strategy-never-hits": ("prefix-cache-off", "memory-idle"),
    "measured/tiny-second-server-same-port": ("prefix-cache-off", "memory-idle"),
    "real_rounds/27b-48g-r01": ("pool-below-context", "prefix-cache-off", "ratio-misfit"),
    "real_rounds/27b-48g-auto-r1": ("pool-below-context", "prefix-cache-off", "ratio-misfit"),
    "real_rounds/27b-48g-auto-r2": ("low-headroom", "prefix-cache-off", "spec-eats-pool", "kv-scale-missing"),
    "real_rounds/next-80b-whole-card": ("requests-capped-by-slots", "spec-eats-pool", "memory-idle"),
    # Read while it still captured its graphs.
    "real_rounds/dense-whole-card": (),
    "real_rounds/27b-48g-solved-mtp": ("spec-eats-pool", "low-headroom", "kv-scale-missing"),
}

EXPECTED: dict[str, tuple[str, ...]] = {
    "01-boot-on-two-24-gb-cards": ("low-headroom", "parser-mismatch"),
    "03-capture-does-not-compile": ("kernel-crash",),
    "04-small-card-default-fraction": (),
    "06-asked-64-slots-got-614": ("asked-not-effective",),
    "07-asked-64-slots-got-117": ("asked-not-effective", "memory-idle"),
    "07-weights-leave-nothing": ("no-room-at-sizing",),
    "08-backend-fails-in-warm-up": ("kernel-crash",),
    "08-boot-with-draft-line-without-memory": ("memory-idle",),
    "10-48-slots-admit-16": ("requests-capped-by-slots", "memory-idle"),
    "10-fraction-below-the-weights": ("no-room-at-sizing",),
    "10-moe-kernel-does-not-fit": ("kernel-crash",),
    "11-96-slots-admit-19": ("requests-capped-by-slots",),
    "11-cudnn-missing": ("tool-chain-missing",),
    "11-not-a-server-flag": ("unknown-flag",),
    "13-408-tokens-above-the-context": ("pool-below-context",),
    "13-overlap-load-with-speculation": ("flag-conflict",),
    "14-host-tier-on-a-hybrid": ("upstream-fault", "spec-eats-pool"),
    "16-memory-comes-back-after-sizing": ("spec-eats-pool", "low-headroom"),
    "20-64-slots-admit-12": ("requests-capped-by-slots",),
    "22-10-slots-admit-2": ("requests-capped-by-slots",),
    "22-3-slots-serve-nobody": ("no-room-at-sizing",),
    "22-last-capture-runs-out": ("oom-in-capture",),
    "22-long-prompt-decodes-slowly": (),
    "24-gpu-page-fault": ("kernel-crash",),
    "26-boot-on-an-apu": (),
    "26-log-stops-while-loading": ("silent-end",),
    "27-attention-backend-refused": ("kernel-crash",),
    "28-draft-capture-runs-out": ("oom-in-capture",),
    "30-pool-below-the-asked-context": ("pool-below-context",),
    "31-ninja-not-on-path": ("tool-chain-missing",),
    "31-weights-leave-nothing": ("no-room-at-sizing",),
    "31-wheel-too-old-for-the-head": ("checkpoint-unfit",),
    "33-slots-locked-by-write-through": ("slot-assert",),
    "34-ping-pong-slots": ("slot-assert",),
    "35-host-tier-index-not-on-gpu": ("upstream-fault",),
    "36-host-tier-too-large": ("hicache-host-memory",),
    "38-leaf-cannot-be-evicted": ("upstream-fault",),
    "39-leak-check-newer-spelling": ("upstream-fault",),
    "39-leak-check-on-a-borrowed-slot": ("upstream-fault",),
    "44-allocator-assert-without-text": ("flag-conflict",),
    "44-page-128-without-buffer": ("flag-conflict",),
    "45-same-prompt-never-hits": ("prefix-cache-off",),
    "49-boot-on-eight-cards": (),
    "51-prefix-cache-off-on-purpose": ("prefix-cache-off", "memory-idle"),
    "52-large-pool": (),
    "55-ninja-missing": ("tool-chain-missing",),
    "57-no-fraction-works": ("no-room-at-sizing",),
    "58-fraction-resolved-to-02": ("no-room-at-sizing",),
    "59-input-refused-by-a-tiny-pool": ("pool-below-context",),
    "61-plain-model": (),
    "62-plain-model-older-format": (),
    "62-warm-up-through-a-proxy": ("proxy-in-the-way",),
    "64-two-servers-on-the-same-cards": ("gpu-busy",),
    "65-weights-larger-than-the-card": ("oom-while-loading",),
    "67-large-pool-and-idle-memory": ("memory-idle",),
    "68-offload-breaks-tied-parameters": ("flag-conflict",),
    "68-package-walk-warning": (),
    "68-quantised-layer-not-divisible": ("checkpoint-unfit",),
    "70-1000-slots-admit-200": ("requests-capped-by-slots",),
    "73-offload-kills-the-first-request": ("flag-conflict",),
    "75-orphan-holds-the-rpc-port": ("double-start",),
    "78-shared-memory-full": ("shared-memory-full",),
    "83-busy-with-a-long-prefill": ("busy",),
    "84-old-version-without-prefix-cache": ("prefix-cache-off",),
    "86-no-kernel-for-this-card": ("kernel-crash",),
    "87-decode-role-ignores-the-slots": ("slot-assert",),
    "90-36-slots-admit-7": ("requests-capped-by-slots",),
    "93-handoff-finds-no-slot": ("slot-assert",),
}

#: Cases that the quoted lines alone do not tell, and why.
NOT_FOUND: dict[str, str] = {
    "45-same-prompt-never-hits": "one field of a batch line: whether prompts share a beginning stands elsewhere; "
    "readings over time tell it (test_doctor_readings)",
    "64-two-servers-on-the-same-cards": "the line is that of a fraction too low; only the card's size or its processes "
    "tell that somebody else is on it, and with the size given it is found (test_doctor_cases)",
}

#: Cases without a line of a log, with what covers them instead.
NO_LOG: dict[str, str] = {
    "17": "formulas only: requests-capped-by-slots in a plan",
    "19": "a table of readings: requests-capped-by-slots (test_doctor_readings)",
    "23": "a table of results",
    "41": "no error at all: pd-mismatch by comparing both logs (test_doctor_roles)",
    "42": "no error at all: pd-mismatch by comparing both logs (test_doctor_roles)",
    "46": "scores and latencies: flag-conflict by the flags",
    "48": "numbers of a table",
    "54": "answers of the API: parser-mismatch by the flags",
    "74": "counts of requests",
    "77": "a list of GPU processes: gpu-busy (test_doctor_readings)",
    "80": "no line at all",
    "81": "an answer of /metrics: metrics-off (test_doctor_readings)",
    "89": "code",
    "92": "no line at all",
}


class Row(NamedTuple):
    """One log: what should be found and what is."""

    name: str
    expected: tuple[str, ...]
    found: tuple[Finding, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(str(f.id) for f in self.found)

    @property
    def first_right(self) -> bool:
        return self.ids[:1] == self.expected[:1]

    @property
    def false_ones(self) -> tuple[str, ...]:
        """Found above a note and not expected."""
        return tuple(str(f.id) for f in self.found if f.severity is not Severity.NOTE and f.id not in self.expected)

    @property
    def right(self) -> bool:
        return self.first_right and not self.false_ones


def asked(words: str) -> dict[str, Any]:
    """Flags of a quoted command by underscore name; its versions and models are not all in the catalogue."""
    flags: dict[str, Any] = {}
    name = ""
    for word in shlex.split(words):
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            flags[name] = True
        else:
            flags[name] = word
    return flags


def diagnosed(text: str, **known: Any) -> tuple[Finding, ...]:
    reader = BootReader()
    reader.feed(text)
    reader.close()
    return diagnose_log(reader.facts, reader.tail, **known)


def case_log(name: str) -> tuple[dict[str, str], str]:
    """(header, quoted lines) of a case's file."""
    header: dict[str, str] = {}
    lines = (CASES / f"{name}.log").read_text(encoding="utf-8").splitlines()
    while lines and lines[0].startswith("# "):
        key, _, value = lines.pop(0)[2:].partition(": ")
        header[key] = value
    return header, "\n".join(lines) + "\n"


def case_row(name: str) -> Row:
    header, text = case_log(name)
    found = diagnosed(text, died=header.get("died") == "yes", asked=asked(header.get("asked", "")))
    return Row(name, EXPECTED[name], found)


def recorded_row(name: str) -> Row:
    return Row(name, RECORDED[name], diagnosed((DATA / f"{name}.log").read_bytes().decode("utf-8", "replace")))


def rows() -> Iterator[Row]:
    yield from map(recorded_row, RECORDED)
    yield from map(case_row, EXPECTED)


def table() -> str:
    """The table as text, with its totals."""
    every = list(rows())
    lines = [f"{'log':<46} {'expected':<62} found"]
    for row in every:
        mark = "" if row.right else "   <- " + NOT_FOUND.get(row.name, "WRONG")
        found = [str(f.id) + ("" if f.severity is not Severity.NOTE else " (note)") for f in row.found]
        lines.append(f"{row.name:<46} {', '.join(row.expected) or '-':<62} {', '.join(found) or '-'}{mark}")
    lines.append("")
    lines += [f"case {number}: no log line ({why})" for number, why in NO_LOG.items()]
    for title, some in (("recordings", every[: len(RECORDED)]), ("quoted logs", every[len(RECORDED) :])):
        right = sum(row.right for row in some)
        false = sum(len(row.false_ones) for row in some)
        lines.append(
            f"{title}: {right} of {len(some)} right ({100 * right / len(some):.1f} %), {false} false above note"
        )
    numbers = {row.name[:2] for row in every[len(RECORDED) :]}
    wrong = {row.name[:2] for row in every[len(RECORDED) :] if not row.right}
    whole = len(numbers - wrong)
    lines.append(f"cases that quote a log line: {whole} of {len(numbers)} right ({100 * whole / len(numbers):.1f} %)")
    return "\n".join(lines)
