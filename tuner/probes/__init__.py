"""Readers of GPU and server: the edges. Every field may be missing."""

import sys

# httpx imports a command line of its own along with itself: 2 MB that an app kept open all day would hold for nothing.
# A name set to None fails to import, which httpx provides for.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
