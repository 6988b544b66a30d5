"""``docker run``: the options before the image, as far as they matter to a recipe."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_PROGRAMS = frozenset({"docker", "podman", "nerdctl"})
#: Long options of ``docker run`` (29) that stand without a value; every other one takes the next word.
_SWITCHES = frozenset(
    {
        "detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "oom-kill-disable",
        "privileged", "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "use-api-socket",
    }
)  # fmt: skip
_SHORT_SWITCHES = "ditPq"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What a ``docker run`` says of its container."""

    environment: dict[str, str]
    #: (folder in the container, folder outside), longest first.
    volumes: tuple[tuple[str, str], ...]
    image: str
    #: The words after the image.
    command: tuple[str, ...]
    remarks: tuple[str, ...]

    def outside(self, words: Sequence[str]) -> list[str]:
        """The words with paths of the container as the paths that they are outside."""
        return [self._outside(word) for word in words]

    def _outside(self, word: str) -> str:
        for inside, outside in self.volumes:
            if word == inside or word.startswith(inside.rstrip("/") + "/"):
                return outside + word[len(inside) :] if word != inside else outside
        return word


def read(words: Sequence[str]) -> Container | None:
    """The container that these words run, or None when they run none."""
    start = next((at for at, w in enumerate(words) if w.rsplit("/", 1)[-1] in _PROGRAMS), None)
    if start is None or "run" not in words[start + 1 : start + 4]:
        return None
    at = words.index("run", start + 1) + 1
    given: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        at += 1
        if option.startswith("--"):
            name = option[2:]
            if name in _SWITCHES:
                continue
            if not equals:
                value = words[at] if at < len(words) else ""
                at += 1
            given.append((name, value))
            continue
        letters = option[1:].lstrip(_SHORT_SWITCHES)
        if not letters:
            continue
        value = letters[1:] + equals + value
        if not value:
            value = words[at] if at < len(words) else ""
            at += 1
        given.append((letters[0], value))
    image = words[at] if at < len(words) else ""
    return Container(
        environment=_environment(given),
        volumes=_volumes(given),
        image=image,
        command=tuple(words[at + 1 :]),
        remarks=tuple(_remarks(given, image)),
    )


def _environment(given: list[tuple[str, str]]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for option, value in given:
        if option in ("e", "env"):
            name, equals, text = value.partition("=")
            if _VARIABLE.fullmatch(name):
                environment[name] = text if equals else f"${{{name}}}"
    return environment


def _volumes(given: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for option, value in given:
        if option in ("v", "volume"):
            parts = value.split(":")
            if len(parts) >= 2 and parts[0] and parts[1]:
                pairs.append((parts[1], parts[0]))
        elif option == "mount":
            fields = dict(part.partition("=")[::2] for part in value.split(","))
            inside = fields.get("target") or fields.get("dst") or fields.get("destination")
            outside = fields.get("source") or fields.get("src")
            if inside and outside:
                pairs.append((inside, outside))
    return tuple(sorted(pairs, key=lambda pair: -len(pair[0])))


def _remarks(given: list[tuple[str, str]], image: str) -> list[str]:
    remarks = [f"The image {image} is not kept: a recipe names an interpreter (python under [server])."]
    for option, value in given:
        if option == "env-file":
            remarks.append(f"The variables of {value} are not read: put them under [environment].")
        elif option in ("p", "publish"):
            remarks.append(f"The published port {value} is not kept: a recipe has the server's own port.")
        elif option == "gpus" and value not in ("all", ""):
            remarks.append(f"--gpus {value} is not kept: set CUDA_VISIBLE_DEVICES under [environment].")
    return remarks
