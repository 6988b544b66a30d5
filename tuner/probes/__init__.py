"""Readers of GPU and server: the edges. Every field may be missing."""
