"""What a server must be good for, as the recipe's [tuner] table states it and as it is asked for. Pure."""

from __future__ import annotations

import msgspec

from tuner.planner.need import Need
from tuner.recipe.model import TunerSettings


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a need; None: not told."""

    input_tokens: int | None = None
    agents: int | None = None
    warm_prefixes: int | None = None
    output_tokens: int | None = None
    headroom_gib: float | None = None

    def over(self, settings: TunerSettings) -> Stated:
        """What is asked for here, and for the rest what the recipe states."""
        return Stated(
            input_tokens=self.input_tokens if self.input_tokens is not None else settings.need_input_tokens,
            agents=self.agents if self.agents is not None else settings.need_agents,
            warm_prefixes=self.warm_prefixes if self.warm_prefixes is not None else settings.need_warm_prefixes,
            output_tokens=self.output_tokens if self.output_tokens is not None else settings.need_output_tokens,
            headroom_gib=self.headroom_gib,
        )

    def need(self, *, output_tokens: int = 1) -> Need | None:
        """The need, of one agent unless told; None while nobody tells the longest input.

        ``output_tokens``: where no answer's length is told.
        """
        if self.input_tokens is None:
            return None
        return Need(
            input_tokens=self.input_tokens,
            agents=self.agents or 1,
            warm_prefixes=self.warm_prefixes or 0,
            output_tokens=self.output_tokens or output_tokens,
            headroom_gib=self.headroom_gib,
        )


def stated_need(settings: TunerSettings) -> Need | None:
    """The need that a recipe states; None when it states no longest input."""
    return Stated().over(settings).need()


def with_wishes(
    settings: TunerSettings, need: Need, *, ttft_s: float | None = None, itl_s: float | None = None
) -> TunerSettings:
    """The settings of a recipe that states ``need`` and the times asked for; what is not asked for stays as it is."""
    return msgspec.structs.replace(
        settings,
        need_input_tokens=need.input_tokens,
        need_output_tokens=need.output_tokens,
        need_agents=need.agents,
        need_warm_prefixes=need.warm_prefixes,
        headroom_gib=need.headroom_gib if need.headroom_gib is not None else settings.headroom_gib,
        slo_ttft_s=ttft_s if ttft_s is not None else settings.slo_ttft_s,
        slo_itl_ms=itl_s * 1000 if itl_s is not None else settings.slo_itl_ms,
    )


def without_wishes(settings: TunerSettings) -> TunerSettings:
    """What of the settings reaches a start: no need, no headroom, no latencies, nothing of what is checked after it."""
    return msgspec.structs.replace(
        settings,
        headroom_gib=None,
        slo_ttft_s=None,
        slo_itl_ms=None,
        need_input_tokens=None,
        need_output_tokens=None,
        need_agents=None,
        need_warm_prefixes=None,
        checks=None,
    )
