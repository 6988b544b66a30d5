"""Text of a server log in, facts out. Pure: opens no file."""

from tuner.serverlog.batch import batch_line
from tuner.serverlog.reader import BootReader, read_boot
from tuner.serverlog.records import records

__all__ = ["BootReader", "batch_line", "read_boot", "records"]
