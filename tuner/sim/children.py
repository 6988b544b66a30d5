"""SGLang's helper processes: a scheduler and a detokenizer that hold nothing and end with their parent."""

from __future__ import annotations

import subprocess
import sys

SCHEDULER = "sglang::scheduler"
DETOKENIZER = "sglang::detokenizer"

#: A child names itself, then waits until its standard input ends: that is when the parent is gone, however it went.
_CHILD = """
import signal, sys, time
try:
    import ctypes
    ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.argv[3] == "deaf":
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(s, signal.SIG_IGN)
sys.stdout.write("up\\n")
sys.stdout.flush()
sys.stdin.read()
time.sleep(float(sys.argv[2]))
"""


def spawn(
    title: str, *, linger_s: float = 0.0, deaf: bool = False, own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Starts a child with ``title`` and waits until it is up.

    It ends ``linger_s`` seconds after its parent; a ``deaf`` one takes no notice of SIGTERM, SIGHUP and SIGQUIT.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD, title, str(linger_s), "deaf" if deaf else "hearing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=own_session,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    return child
