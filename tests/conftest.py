"""What holds for every test: signals work as in a terminal, and chance is the same each time."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

#: By hand: how many times as many examples each property test runs, by chance instead of the same each time.
DEEPER = int(os.environ.get("TUNER_DEEPER", "0"))

# Under nohup a hang-up is ignored, and so it would be by every process that a test starts and hangs up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A suite that passes passes again; campaigns by hand (more examples) look further each time.
settings.register_profile("same each time", derandomize=True, database=None)
if not DEEPER and "TUNER_EXAMPLES" not in os.environ:
    settings.load_profile("same each time")
    # Hypothesis also draws the numbers that it reads in our modules imported so far: which those are depends on
    # the tests that ran before in the same worker, and with them the examples.
    providers._get_local_constants = providers.Constants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has each property test look at ``TUNER_DEEPER`` times as many examples."""
    if not DEEPER:
        return
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if (own := getattr(test, "_hypothesis_internal_use_settings", None)) is not None:
            test._hypothesis_internal_use_settings = settings(own, max_examples=own.max_examples * DEEPER)
