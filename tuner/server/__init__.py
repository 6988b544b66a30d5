"""The server process: preflight, start, readiness, stop, adoption."""
