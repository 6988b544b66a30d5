"""Runs of lines of a server that serves: nearly all of a long log, and nothing in them that a start is read from.

They are found by one pattern at a time instead of line by line, which makes a log of hundreds of MB a matter of
seconds. A line that is only like them is no part of a run and is read as any other.
"""

from __future__ import annotations

import re

_STAMP = r"\[(?:19|20)\d\d-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-5]\d(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,4}){0,6}\]"
#: Printable ASCII but quotes, "=" and "[": no secret and no second record can be in it.
_NUMBERS = r"[ !#-&(-<>-Z\\-~]{1,600}"
_BATCH = rf"{_STAMP} (?:Prefill|Decode) batch(?: \[\d{{1,12}}\])?[.,] {_NUMBERS}"
_PATH = (
    r"/(?:health(?:_generate)?|metrics|generate|get_load|(?:get_)?(?:server|model)_info|"
    r"v1/(?:loads|models|completions|chat/completions|responses|messages))"
)
_STATUS = r"\d{3} (?:OK|Service Unavailable|Unauthorized|Not Found|Bad Request)"
_ACCESS = rf'(?:{_STAMP} )?INFO:     [\d.]{{7,15}}:\d{{1,5}} - "(?:GET|POST) {_PATH} HTTP/1\.1" {_STATUS}'

#: Eight such lines or more, with their ends.
RUN = re.compile(rf"^(?:(?:{_BATCH}|{_ACCESS})\r?\n){{8,}}+", re.MULTILINE)
FIRST_STAMP = re.compile(r"^\[(?P<at>[\d-]{10} [\d:]{8})", re.MULTILINE)
#: The first batch line of each kind, without its stamp.
FIRST_OF = {kind: re.compile(rf"{kind.capitalize()} batch.*") for kind in ("prefill", "decode")}
BATCH_MARK = " batch"
