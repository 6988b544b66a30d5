"""``tuner guide``: the pages on the two pools, each screen, questions from the field and every finding."""

from __future__ import annotations

import click
import msgspec

from tuner.cli.output import DONE, FAILED, PLAIN_TEXT, UsageProblem, command, fail, json_option, print_json, say
from tuner.guide import NAMES, GuideError, page, pages, search, section
from tuner.guide.lines import printed

_NAME_CELLS = 20


@click.command("guide")
@click.argument("name", metavar="[PAGE]", required=False, type=PLAIN_TEXT)
@click.option("--search", "word", metavar="WORD", type=PLAIN_TEXT, help="Say where WORD stands, in PAGE or in all.")
@json_option
@command
def guide_command(name: str | None, word: str | None, as_json: bool) -> int:
    """List the pages of the guide, or print PAGE.

    PAGE may also be the id of a finding, such as oom-in-capture.
    """
    try:
        if word is not None:
            return _search(word, name, as_json=as_json)
        if name is not None:
            return _print(name, as_json=as_json)
    except GuideError as error:
        raise UsageProblem(str(error)) from error
    if as_json:
        print_json([{"name": p.name, "title": p.title, "summary": p.summary} for p in pages()])
        return DONE
    for told in pages():
        say(f"{told.name:<{_NAME_CELLS}}{told.summary}")
    say("tuner guide two-pools prints a page; G opens the page of a screen in the app.")
    return DONE


def _print(name: str, *, as_json: bool) -> int:
    part = None if name in NAMES else section(name)
    told = page(name) if part is None else part
    if as_json:
        print_json(msgspec.to_builtins(told))
    else:
        say(printed(told.text))
    return DONE


def _search(word: str, name: str | None, *, as_json: bool) -> int:
    hits = search(word, name)
    if as_json:
        print_json(msgspec.to_builtins(hits))
        return DONE if hits else FAILED
    if not hits:
        fail(f"No page has {word!r}. tuner guide lists the pages.", as_json=False)
        return FAILED
    told = ("", "")
    for hit in hits:
        if (hit.page, hit.section) != told:
            told = (hit.page, hit.section)
            say(f"{hit.page}: {hit.section}" if hit.section else hit.page)
        say(f"    {hit.text}")
    return DONE
