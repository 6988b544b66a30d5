"""What holds for every test: signals work as in a terminal, and chance is the same each time."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Under nohup a hang-up is ignored, and so it would be by every process that a test starts and hangs up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A suite that passes passes again; campaigns by hand (more examples) look further each time.
settings.register_profile("same each time", derandomize=True, database=None)
if "TUNER_EXAMPLES" not in os.environ:
    settings.load_profile("same each time")
