"""The server's own count of cached tokens, for what its answers do not tell."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tuner.metrics import MetricsError, parse_metrics
from tuner.metrics.model import Reach


@runtime_checkable
class Metered(Protocol):
    """A client that can read ``/metrics``."""

    def metrics(self) -> str | Reach: ...


class CacheCounter:
    """Cached prompt tokens since the server started (``sglang:cached_tokens_total``)."""

    def __init__(self, client: object) -> None:
        self._client = client if isinstance(client, Metered) else None
        self._last = self._read()

    def since(self) -> int | None:
        """By how much the counter went up since the last call; None where there is no counter."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None or self._last < before:
            return None
        return self._last - before

    def _read(self) -> int | None:
        page = self._client.metrics() if self._client is not None else Reach.OFF
        if isinstance(page, Reach):
            return None
        try:
            return int(parse_metrics(page).cached_tokens)
        except MetricsError:
            return None
