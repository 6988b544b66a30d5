"""What holds for every test: signals work as in a terminal, also where the suite was started to outlive its own."""

from __future__ import annotations

import signal

# Under nohup a hang-up is ignored, and so it would be by every process that a test starts and hangs up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
