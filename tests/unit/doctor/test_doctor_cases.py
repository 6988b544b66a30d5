"""The table of recordings and public cases; ``tests/bench/table_cases.py`` prints it."""

import pytest
from case_table import (
    CASES,
    DATA,
    EXPECTED,
    NO_LOG,
    NOT_FOUND,
    RECORDED,
    case_log,
    case_row,
    diagnosed,
    recorded_row,
    rows,
)

from tuner.findings import FindingId, Severity


def test_every_recording_and_every_case_is_in_the_table():
    logs = {f"{folder}/{path.stem}" for folder in ("measured", "real_rounds") for path in (DATA / folder).glob("*.log")}
    assert logs == set(RECORDED)
    assert {path.stem for path in CASES.glob("*.log")} == set(EXPECTED)
    assert set(NOT_FOUND) <= set(EXPECTED)
    # 64 public cases, each with a log or with the reason why it has none.
    assert len({name[:2] for name in EXPECTED} | set(NO_LOG)) == 64


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_raises_only_what_is_true_of_it(name):
    row = recorded_row(name)
    assert row.ids == row.expected


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in NOT_FOUND])
def test_a_public_case_is_named_and_nothing_else_is(name):
    row = case_row(name)
    assert row.ids == row.expected
    for found in row.found:
        assert found.title.endswith(".")
        assert found.remedy.endswith(".")
        assert found.evidence


def test_nine_of_ten_cases_are_found_right_and_none_is_guessed_at():
    cases = [row for row in rows() if row.name in EXPECTED]
    numbers = {row.name[:2] for row in cases}
    wrong = {row.name[:2] for row in cases if not row.right}
    assert len(wrong) <= len(numbers) / 10
    assert sum(row.right for row in cases) >= 0.9 * len(cases)
    assert [row.name for row in cases if not row.right] == sorted(NOT_FOUND)


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_listed_as_not_found_is_not(name):
    assert not case_row(name).first_right


def test_two_servers_on_the_same_cards_are_told_where_the_card_is_known():
    _, text = case_log("64-two-servers-on-the-same-cards")
    begin = "Load weight begin. avail mem=140.00 GB\n"
    (found,) = diagnosed(begin + text, card_gib=287.0)
    assert found.id == FindingId.GPU_BUSY


def test_a_healthy_log_has_nothing_fatal():
    for row in rows():
        if "pool-below-context" in row.expected or row.expected[:1] in ((), ("memory-idle",), ("low-headroom",)):
            assert all(f.severity is not Severity.FATAL for f in row.found), row.name
