"""Two rounds side by side: only what changed, each with a verdict, and what was bought with what. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.checks.model import CheckResult, Verdict
from tuner.metrics.model import Readings, Spread
from tuner.rounds.measured import measured
from tuner.rounds.measures import first_answers, longest_input_told, terms
from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import FIRST_ANSWERS, Change, ChangeVerdict, Round, RoundDiff
from tuner.rounds.noise import NOISE, compare, compare_percentiles
from tuner.rounds.story import NEVER_SERVED, story
from tuner.rounds.summary import changed_values, model_name
from tuner.rounds.values import ACCEPTANCE, HIT_RATIO, PREDICTED, change_text, number_text, share_text

#: Drawn anew at each start, so that they tell nothing of the settings.
DRAWN_ANEW = frozenset({"random_seed", "nccl_port", "startup_time", "status"})
#: Values in effect that say over again what the pools say.
POOLS_IN_EFFECT = frozenset({"max_mamba_cache_size", "max_total_num_tokens", "max_req_input_len"})
#: Printed with two decimals.
_GIB_STEP = 0.011
#: Checks' times below this say nothing, whatever their ratio (seconds).
_SECONDS_STEP = 0.05

KV_TOKENS = "KV tokens"
STATE_SLOTS = "state slots"
REQUESTS = "requests"
LONGEST_INPUT = "longest input, tokens"
FREE_AT_READY = "free at ready, GiB"


def diff(old: Round, new: Round) -> RoundDiff:
    """What differs between two rounds. Needs no order: either may be the earlier one."""
    apart = why_apart(old, new)
    pools = tuple(_judge_apart(_pools(old, new), apart))
    checks = tuple(_checks(old, new, apart))
    metrics = tuple(_judge_apart(_metrics(old, new), apart))
    flags = tuple(_flags(old, new))
    return RoundDiff(
        old=old.name,
        new=new.name,
        flags_changed=flags,
        effective_changed=tuple(_effective(old, new)),
        pools=pools,
        checks=checks,
        metrics=metrics,
        summary=story(old, new, apart=apart, flags=flags, pools=pools, checks=checks, metrics=metrics),
        simulated=old.simulated or new.simulated,
    )


def why_apart(old: Round, new: Round) -> str:
    """Why no number of two rounds can be better or worse; empty when they can."""
    if old.simulated != new.simulated:
        stand_in, real = (old, new) if old.simulated else (new, old)
        return f"{stand_in.name} is simulated and {real.name} is not"
    if (before := old.fingerprint) and (after := new.fingerprint):
        # The same folder may hold another model by now, and the same model may have moved.
        if before != after:
            return f"the models differ ({model_name(old) or 'none'} and {model_name(new) or 'none'}, by their files)"
    elif model_name(old) != model_name(new):
        return f"the models differ ({model_name(old) or 'none'} and {model_name(new) or 'none'})"
    if old.gpu_name and new.gpu_name and old.gpu_name != new.gpu_name:
        return f"the cards differ ({old.gpu_name} and {new.gpu_name})"
    return ""


def _flags(old: Round, new: Round) -> Iterator[Change]:
    yield from _values(changed_values(old.recipe.flags, new.recipe.flags))
    yield from _values(changed_values(old.recipe.environment, new.recipe.environment), "environment ")
    yield from _values(changed_values({"interpreter": old.recipe.python}, {"interpreter": new.recipe.python}))
    yield from _values(changed_values(old.recipe.tuner.simulator, new.recipe.tuner.simulator), "simulator ")


def _effective(old: Round, new: Round) -> Iterator[Change]:
    asked = changed_values(old.recipe.flags, new.recipe.flags)
    # A server that never told its values differs in none of them.
    changed = changed_values(old.effective, new.effective) if old.effective and new.effective else {}
    # What took effect as asked is said once, among the flags.
    news = {name: pair for name, pair in changed.items() if name not in DRAWN_ANEW and asked.get(name) != pair}
    yield from _values(news)
    yield from _values(changed_values({"SGLang": old.sglang_version}, {"SGLang": new.sglang_version}))
    yield from _values(changed_values({"driver": old.driver_version}, {"driver": new.driver_version}))


def _values(changed: Mapping[str, tuple[Any, Any]], prefix: str = "") -> Iterator[Change]:
    for name, (before, after) in changed.items():
        yield Change(name=prefix + name, old=before, new=after, change=change_text(name, before, after))


def _pools(old: Round, new: Round) -> Iterator[Change]:
    was, is_ = old.plan, new.plan
    for name, field in (
        (KV_TOKENS, "kv_tokens"),
        (STATE_SLOTS, "mamba_slots"),
        (REQUESTS, "max_running_requests"),
        (LONGEST_INPUT, "longest_input_tokens"),
    ):
        yield from _counted(f"{name}{PREDICTED}", getattr(was, field, None), getattr(is_, field, None), None)
        yield from _counted(name, _actual(old, field), _actual(new, field), True)
    yield from _gib(
        f"{FREE_AT_READY}{PREDICTED}", was.ready_free_gib if was else None, is_.ready_free_gib if is_ else None
    )
    yield from _gib(FREE_AT_READY, free_at_ready_gib(old), free_at_ready_gib(new))
    before, after = terms(old.boot), terms(new.boot)
    for name in dict.fromkeys((*before, *after)):
        yield from _gib(f"{name}, GiB", before.get(name), after.get(name))
    for name, when in (("VRAM at its highest, GiB", "peak"), ("VRAM at ready, GiB", "ready")):
        yield from _gib(name, _vram_gib(old, when), _vram_gib(new, when))


def _actual(round_: Round, field: str) -> int | None:
    """What the server came to, by the planner's name for it."""
    if field == "longest_input_tokens":
        return longest_input_told(round_)
    value = getattr(round_.boot, field, None)
    return value if isinstance(value, int) else None


def _vram_gib(round_: Round, when: str) -> float | None:
    mib = round_.vram_mib.get(when)
    return None if mib is None else mib / 1024


def _counted(name: str, before: int | None, after: int | None, more_is_better: bool | None) -> Iterator[Change]:
    if before == after:
        return
    verdict = ChangeVerdict.CHANGED
    if more_is_better is not None and before is not None and after is not None:
        verdict = ChangeVerdict.BETTER if (after > before) == more_is_better else ChangeVerdict.WORSE
    yield Change(name=name, old=before, new=after, change=change_text(name, before, after), verdict=verdict)


def _gib(name: str, before: float | None, after: float | None) -> Iterator[Change]:
    if before is not None and after is not None and abs(before - after) < _GIB_STEP:
        return
    if before != after:
        old, new = _rounded(before, 2), _rounded(after, 2)
        yield Change(name=name, old=old, new=new, change=change_text(name, before, after))


def _checks(old: Round, new: Round, apart: str) -> Iterator[Change]:
    if old.state != new.state:
        yield Change(name="outcome", old=str(old.state), new=str(new.state))
    before, after = ({check.name: check for check in round_.checks} for round_ in (old, new))
    for name in dict.fromkeys((*after, *before)):
        was, is_ = before.get(name), after.get(name)
        if (was and was.verdict) != (is_ and is_.verdict):
            yield Change(
                name=name,
                old=str(was.verdict) if was else None,
                new=str(is_.verdict) if is_ else None,
                verdict=ChangeVerdict.NOT_COMPARABLE if apart else _check_verdict(was, is_),
            )
    for name in dict.fromkeys((*after, *before)):
        was, is_ = before.get(name), after.get(name)
        if was and is_:
            yield from _judge_apart(_seconds(f"{name}, s", was.seconds, is_.seconds), apart)


def _check_verdict(was: CheckResult | None, is_: CheckResult | None) -> ChangeVerdict:
    if is_ and is_.verdict is Verdict.PASS and was:
        return ChangeVerdict.BETTER
    if is_ and is_.verdict is Verdict.FAIL:
        return ChangeVerdict.WORSE
    return ChangeVerdict.CHANGED


def _seconds(name: str, before: float | None, after: float | None) -> Iterator[Change]:
    """A time taken once: it changed or it is within noise, but one sample makes it neither better nor worse."""
    if before is None or after is None:
        if before != after:
            yield _missing(name, _rounded(before), _rounded(after))
        return
    if abs(after - before) < _SECONDS_STEP:
        return
    noise = abs(after - before) <= NOISE * before
    verdict = ChangeVerdict.WITHIN_NOISE if noise else ChangeVerdict.CHANGED
    change = share_text(before, after)
    yield Change(name=name, old=_rounded(before), new=_rounded(after), change=change, verdict=verdict)


def _metrics(old: Round, new: Round) -> Iterator[Change]:
    if any(r.state in NEVER_SERVED and r.ready_seconds is None for r in (old, new)):
        # What never served was not measured: that is no difference.
        return
    yield from _seconds("ready, s", old.ready_seconds, new.ready_seconds)
    yield from _seconds(f"{FIRST_ANSWERS}, s", first_answers(old), first_answers(new))
    before, after = old.readings or Readings(at=0.0), new.readings or Readings(at=0.0)
    for label, field in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        for which in ("p50", "p95"):
            yield from _latency(f"{label} {which}, s", getattr(before, field), getattr(after, field), which)
    yield from _level(HIT_RATIO, before.prefix_hit_ratio, after.prefix_hit_ratio, judged=True)
    yield from _level(
        ACCEPTANCE,
        before.acceptance_length,
        after.acceptance_length,
        # Longer drafts are accepted for longer without being better for it.
        judged=_speculation(old) == _speculation(new),
    )
    yield from measured(old.measurements, new.measurements)
    yield from _level("decode, tokens/s", before.decode_tokens_per_s, after.decode_tokens_per_s, judged=False)
    yield from _level("prefill, tokens/s", before.prefill_tokens_per_s, after.prefill_tokens_per_s, judged=False)


def _latency(name: str, before: Spread | None, after: Spread | None, which: str) -> Iterator[Change]:
    if before is None or after is None:
        if before is not after:
            yield _missing(name, _rounded(getattr(before, which, None)), _rounded(getattr(after, which, None)))
        return
    was: float = getattr(before, which)
    is_: float = getattr(after, which)
    if was == is_:
        return
    yield Change(
        name=name,
        old=_rounded(was),
        new=_rounded(is_),
        change=share_text(was, is_),
        verdict=compare_percentiles(before, after, which),
    )


def _level(name: str, before: float | None, after: float | None, *, judged: bool) -> Iterator[Change]:
    if before == after:
        return
    if before is None or after is None:
        yield _missing(name, _rounded(before), _rounded(after))
        return
    if number_text(name, before) == number_text(name, after):
        return
    verdict = compare(before, after, lower_is_better=False)
    if not judged and verdict is not ChangeVerdict.WITHIN_NOISE:
        # A rate follows the load of the moment, which differs between two rounds.
        verdict = ChangeVerdict.CHANGED
    change = change_text(name, before, after)
    yield Change(name=name, old=_rounded(before), new=_rounded(after), change=change, verdict=verdict)


def _speculation(round_: Round) -> dict[str, Any]:
    return {name: value for name, value in round_.recipe.flags.items() if name.startswith("speculative")}


def _missing(name: str, before: Any, after: Any) -> Change:
    return Change(name=name, old=before, new=after, verdict=ChangeVerdict.NOT_COMPARABLE)


def _judge_apart(changes: Iterator[Change], apart: str) -> Iterator[Change]:
    for change in changes:
        if not apart:
            yield change
        else:
            yield Change(
                name=change.name,
                old=change.old,
                new=change.new,
                change=change.change,
                verdict=ChangeVerdict.NOT_COMPARABLE,
            )


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
