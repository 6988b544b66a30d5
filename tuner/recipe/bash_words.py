"""Shell scripts cut into simple commands, as far as a start script goes. Nothing is run and nothing is looked up.

``shlex`` cannot say which part of a word stood in which quotes, and so not where ``$NAME`` is a variable. Quotes, line
continuations, comments, redirections, here-documents, variables and arrays are read as bash reads them; branches are
not followed: commands come in the order they stand.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from tuner.recipe.model import RecipeError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: ${NAME}, ${NAME:-default}, ${NAME:?message}, ${NAME[@]} ...
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\]|:?[-=?+])?(.*)", re.DOTALL)
_ENDS = ";&|()\n"
_ARRAY_START = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v", "E": "\x1b"}
_ANSI_BODY = re.compile(r"((?:[^'\\]|\\.)*+)'", re.DOTALL)
_ANSI_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|(?:u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8}))|([0-7]{1,3})|(.))", re.DOTALL
)

Kind = Literal["text", "variable", "array", "unknown"]


class Piece(msgspec.Struct, frozen=True):
    """A part of a word: literal text, a variable or array by name, or what only a running shell can know."""

    kind: Kind
    text: str
    quoted: bool = False
    #: Of a variable that is not set; None: it must be set.
    default: str | None = None


class Word(msgspec.Struct, frozen=True):
    """A word; ``items`` are the elements when it sets an array (``NAME=(a b)``)."""

    pieces: tuple[Piece, ...]
    items: tuple[Word, ...] | None = None


def commands(text: str) -> list[tuple[Word, ...]]:
    """The simple commands of a script; :class:`RecipeError` for quotes and brackets that are not closed."""
    # Line ends of Windows are taken for such only where the whole file has them.
    windows = text.count("\r\n") == text.count("\n")
    return _Reader(text.replace("\r\n", "\n") if windows else text).commands()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.here: list[str] = []

    def commands(self) -> list[tuple[Word, ...]]:
        found: list[tuple[Word, ...]] = []
        words: list[Word] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t":
                self.at += 1
            elif self._skip_joint():
                continue
            elif letter in _ENDS:
                self.at += 1
                found.append(tuple(words))
                words = []
                if letter == "\n":
                    self._skip_here_documents()
            elif letter == "#":
                self._skip_line()
            elif letter in "<>":
                self._redirection()
            else:
                word = self._word()
                if not (_is_number(word) and self.text[self.at : self.at + 1] in ("<", ">")):
                    words.append(word)
        found.append(tuple(words))
        return [command for command in found if command]

    def _word(self, *, within_array: bool = False) -> Word:
        pieces: list[Piece] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in " \t<>" or letter in _ENDS:
                before = _joined(pieces) if letter == "(" and not within_array else ()
                if len(before) == 1 and not before[0].quoted and _ARRAY_START.fullmatch(before[0].text):
                    return Word(before, self._array())
                break
            if self._skip_joint():
                continue
            pieces.extend(self._piece(letter))
        return Word(_joined(pieces))

    def _piece(self, letter: str) -> list[Piece]:
        if letter == "'":
            return [Piece("text", self._until("'", 1), quoted=True)]
        if letter == '"':
            return self._double()
        if letter == "$":
            return self._dollar(quoted=False)
        if letter == "`":
            return [Piece("unknown", "`" + self._until("`", 1) + "`")]
        if letter == "\\":
            escaped = self.text[self.at + 1 : self.at + 2]
            self.at += 2
            return [Piece("text", escaped, quoted=True)]
        self.at += 1
        if (
            letter == "~"
            and self.text[self.at : self.at + 1] == "/"
            and self.text[self.at - 2 : self.at - 1] in _STARTS
        ):
            return [Piece("variable", "HOME", quoted=True)]
        return [Piece("text", letter)]

    def _double(self) -> list[Piece]:
        opened = self.at
        self.at += 1
        pieces = [Piece("text", "", quoted=True)]
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == '"':
                self.at += 1
                return pieces
            if letter == "$":
                pieces.extend(self._dollar(quoted=True))
            elif letter == "`":
                pieces.append(Piece("unknown", "`" + self._until("`", 1) + "`", quoted=True))
            elif letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                escaped = self.text[self.at + 1]
                pieces.append(Piece("text", "" if escaped == "\n" else escaped, quoted=True))
                self.at += 2
            else:
                pieces.append(Piece("text", letter, quoted=True))
                self.at += 1
        raise self._open(opened)

    def _dollar(self, *, quoted: bool) -> list[Piece]:
        rest = self.text[self.at + 1 : self.at + 2]
        if rest == "(":
            return [Piece("unknown", "$" + self._bracket(1, "(", ")"), quoted)]
        if rest == "{":
            return [_braced(self._bracket(1, "{", "}")[1:-1], quoted)]
        if rest == "'" and not quoted:
            return [Piece("text", self._ansi(), quoted=True)]
        if rest == '"' and not quoted:
            self.at += 1
            return self._double()
        name = _NAME.match(self.text, self.at + 1)
        if name is not None:
            self.at = name.end()
            return [Piece("variable", name[0], quoted)]
        if rest and rest in "@*#?$!-0123456789":
            self.at += 2
            return [Piece("unknown", "$" + rest, quoted)]
        self.at += 1
        return [Piece("text", "$", quoted)]

    def _bracket(self, skip: int, opening: str, closing: str) -> str:
        """From the bracket after ``skip`` letters to the one that closes it, both included."""
        start = self.at
        self.at += skip
        depth, begin = 0, self.at
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "\\":
                self.at += 2
                continue
            if letter == "'" and opening == "(":
                self._until("'", 1)
                continue
            depth += (letter == opening) - (letter == closing)
            self.at += 1
            if depth == 0:
                return self.text[begin : self.at]
        raise self._open(start)

    def _ansi(self) -> str:
        start = self.at
        body = _ANSI_BODY.match(self.text, start + 2)
        if body is None:
            raise self._open(start)
        self.at = body.end()
        return _ANSI_ESCAPE.sub(_bytes_of, body[1]).encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def _until(self, closing: str, skip: int) -> str:
        start = self.at
        end = self.text.find(closing, start + skip)
        if end < 0:
            raise self._open(start)
        self.at = end + len(closing)
        return self.text[start + skip : end]

    def _array(self) -> tuple[Word, ...]:
        start = self.at
        self.at += 1
        items: list[Word] = []
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == ")":
                self.at += 1
                return tuple(items)
            if letter in " \t\n":
                self.at += 1
            elif self._skip_joint():
                continue
            elif letter == "#":
                self._skip_line()
            elif letter in "<>;&|(":
                break
            else:
                items.append(self._word(within_array=True))
        raise self._open(start)

    def _redirection(self) -> None:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in "<>&|-":
            self.at += 1
        operator = self.text[start : self.at]
        while self.at < len(self.text) and (self.text[self.at] in " \t" or self._skip_joint()):
            self.at += self.text[self.at : self.at + 1] in (" ", "\t")
        if self.at < len(self.text) and self.text[self.at] not in _ENDS:
            target = self._word() if self.text[self.at] not in "<>" else Word(())
            if operator in ("<<", "<<-"):
                self.here.append("".join(piece.text for piece in target.pieces))

    def _skip_here_documents(self) -> None:
        for ending in self.here:
            while self.at < len(self.text):
                line_end = self.text.find("\n", self.at)
                line_end = len(self.text) if line_end < 0 else line_end
                line = self.text[self.at : line_end]
                self.at = line_end + 1
                if line.strip("\t ") == ending:
                    break
        self.here.clear()

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _skip_joint(self) -> bool:
        if self.text.startswith("\\\n", self.at):
            self.at += 2
            return True
        return False

    def _open(self, at: int) -> RecipeError:
        line = self.text.count("\n", 0, at) + 1
        return RecipeError(f"The script has a quote or bracket in line {line} that is not closed.")


#: What may stand before a ``~`` that is the home folder.
_STARTS = ("", " ", "\t", "\n", "=", ":", "(")


def _bytes_of(escape: re.Match[str]) -> str:
    """What an escape of ``$'...'`` stands for; a byte above 127 as half of a character (surrogateescape)."""
    by_hex, short, long, octal, letter = escape.groups()
    if letter is not None:
        return _ANSI.get(letter, letter)
    if by_hex or octal:
        return bytes([int(by_hex or octal, 16 if by_hex else 8) & 0xFF]).decode("utf-8", "surrogateescape")
    point = int(short or long, 16)
    return chr(point) if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF else "\ufffd"


def _braced(inside: str, quoted: bool) -> Piece:
    match = _BRACED.fullmatch(inside)
    if match is None or (match[2] is None and match[3]):
        return Piece("unknown", f"${{{inside}}}", quoted)
    name, operator, rest = match[1], match[2] or "", match[3]
    if operator.startswith("["):
        return Piece("unknown", f"${{{inside}}}", quoted) if rest else Piece("array", name, quoted)
    if operator.endswith("+"):
        return Piece("unknown", f"${{{inside}}}", quoted)
    plain = not re.search(r"[$`\\\"']", rest)
    return Piece("variable", name, quoted, default=rest if operator[-1:] in ("-", "=") and plain else None)


def _is_number(word: Word) -> bool:
    return len(word.pieces) == 1 and not word.pieces[0].quoted and word.pieces[0].text.isdecimal()


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbouring texts of the same kind as one."""
    joined: list[Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before is not None and piece.kind == before.kind == "text" and piece.quoted == before.quoted:
            joined[-1] = msgspec.structs.replace(before, text=before.text + piece.text)
        else:
            joined.append(piece)
    return tuple(joined)
