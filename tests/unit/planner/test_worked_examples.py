"""Every worked example of the reference, number for number, for each version it names."""

from __future__ import annotations

import pytest
from worked_examples import EXAMPLES, Example, found, planned


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.model} {e.version} {e.expected[0]}")
def test_a_worked_example_comes_out_exactly(example: Example) -> None:
    assert planned(example).in_force["mem_fraction_static"] == pytest.approx(example.fraction, abs=5e-5)
    assert found(example) == example.expected
