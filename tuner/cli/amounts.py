"""Amounts on a command line: tokens and memory, as an operator types them."""

from __future__ import annotations

from typing import Any

import click

from tuner.units import parse_gib, parse_tokens


class Tokens(click.ParamType[int]):
    """A number of tokens: 90000, 90,000, 90K, 256Ki."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_tokens(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Gib(click.ParamType[float]):
    """An amount of memory: 4.4, 4.4GiB, 512MiB."""

    name = "gib"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_gib(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
