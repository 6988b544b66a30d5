"""What the stand-in prints: SGLang's line format, on SGLang's streams."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from datetime import datetime
from typing import Any, TextIO

import msgspec

STAMP = "%Y-%m-%d %H:%M:%S"
_HANDLER = "tuner.sim.journal.TrappedHandler"


class Line(msgspec.Struct, frozen=True):
    """A logged line: gets a time stamp and an end of line."""

    text: str


class Raw(msgspec.Struct, frozen=True):
    """Text written as it is: warnings, tracebacks, and progress bars that end without an end of line."""

    text: str


Output = Line | Raw


class Trap:
    """Kills this process at the first line that holds a text, whoever writes it."""

    def __init__(self) -> None:
        self.text: str | None = None

    def check(self, line: str) -> None:
        """Springs when ``line`` holds the text."""
        if self.text and self.text in line:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


TRAP = Trap()


class TrappedHandler(logging.StreamHandler[TextIO]):
    """Writes uvicorn's records, and springs the trap."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        super().emit(record)
        TRAP.check(record.getMessage())


def write(*outputs: Output) -> None:
    """Writes to standard error, where SGLang's own lines and progress bars go.

    A stream that is gone or a disk that is full does not stop a server: SGLang writes through ``logging``, which
    goes on.
    """
    for output in outputs:
        text = output.text
        if isinstance(output, Line):
            text = f"[{datetime.now().strftime(STAMP)}] {text}\n"
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
        TRAP.check(text)


def say(text: str) -> None:
    """Logs one line."""
    write(Line(text))


def uvicorn_log_config() -> dict[str, Any]:
    """SGLang's ``set_uvicorn_logging_configs``: time stamps, access lines to standard output."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {
                "()": "uvicorn.logging.DefaultFormatter",
                "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
                "datefmt": STAMP,
                "use_colors": False,
            },
            "access": {
                "()": "uvicorn.logging.AccessFormatter",
                "fmt": '[%(asctime)s] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
                "datefmt": STAMP,
                "use_colors": False,
            },
        },
        "handlers": {
            "default": {"formatter": "default", "class": _HANDLER, "stream": "ext://sys.stderr"},
            "access": {"formatter": "access", "class": _HANDLER, "stream": "ext://sys.stdout"},
        },
        "loggers": {
            "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
            "uvicorn.error": {"level": "INFO"},
            "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        },
    }
