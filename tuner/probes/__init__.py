"""Readers of GPU and server: the edges. Every field may be missing."""

from tuner.probes.light import import_httpx

# Before anything else of the package can import them whole.
import_httpx()
