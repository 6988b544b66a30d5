"""``tuner verify``: the quick set, the full set, or the same checks through a gateway."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import click
import msgspec

from tuner.checks.gateway import GATEWAY_SET, Gateway, GatewayError, ModelChecked, check_gateway
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.quick import full_set
from tuner.cli.output import DONE, FAILED, UsageProblem, command, fail, json_option, print_json, say
from tuner.cli.progress import narrator
from tuner.cli.recipes import recipe_for
from tuner.metrics import ReadingsWindow
from tuner.paths import Home
from tuner.probes.http import ServerClient
from tuner.recipe.model import ApiSettings
from tuner.server.model import StartRefused
from tuner.session import loop
from tuner.session.events import CheckEnded, CheckStarted, Publish
from tuner.session.session import Session
from tuner.session.swap import leave_to_others
from tuner.session.watching import api_key, poll
from tuner.text import clip, width

#: The readings of a full set cover all of it.
_WINDOW_S = 3600.0


@click.command("verify")
@click.option("--full", is_flag=True, help="All checks: a minute or more; the prefix cache is emptied by them.")
@click.option("--gateway", is_flag=True, help="The three chat checks through an OpenAI-compatible gateway.")
@click.option("--base-url", metavar="URL", help="Base URL of the gateway, instead of the recipe's [api] base_url.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the gateway's key.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model of the gateway; repeatable.")
@click.option("--preset", metavar="PRESET", help="The preset or recipe file whose [api] table names the gateway.")
@json_option
@command
def verify_command(
    full: bool,
    gateway: bool,
    base_url: str | None,
    key_env: str | None,
    models: tuple[str, ...],
    preset: str | None,
    as_json: bool,
) -> int:
    """Check the running server again and record the results in its round.

    With --gateway nothing of ours needs to run: the models are asked by name, side by side, and nothing is recorded.
    """
    if full and gateway:
        raise click.UsageError("Give --full or --gateway: a gateway takes the three chat checks only.")
    if not gateway and (base_url or key_env or models or preset):
        raise click.UsageError("--base-url, --key-env, --model and --preset go with --gateway.")
    cancel = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    session = Session(Home.find())
    try:
        if gateway:
            return _gateway(session, base_url, key_env, models, preset, cancel, as_json=as_json)
        publish = narrator(quiet=as_json)
        results = verify_full(session, publish, cancel) if full else session.verify(publish=publish, cancel=cancel)
    except StartRefused as refusal:
        fail(" ".join(f"{finding.title} {finding.remedy}" for finding in refusal.findings), as_json=as_json)
        return FAILED
    finally:
        session.close()
    if results is None:
        fail("No server of the tuner is running: start one with tuner run.", as_json=as_json)
        return FAILED
    if as_json:
        print_json({"checks": results})
    return DONE if results and all(r.verdict is Verdict.PASS for r in results) else FAILED


def verify_full(session: Session, publish: Publish, cancel: threading.Event) -> list[CheckResult] | None:
    """All checks on the running server, recorded in its round; None when nothing runs."""
    running = session.running()
    if running is None:
        return None
    leave_to_others(session.history, running.handle)
    if running.round is None or running.round.ready_seconds is None:
        # A start that nobody waited for to its end: the quick set sees to that first.
        session.verify(publish=publish, cancel=cancel)
        running = session.running()
        if running is None or running.round is None:
            return None
    round_ = running.round
    client = ServerClient(running.handle.url, api_key=api_key(round_.recipe, session.environ))
    try:
        window = ReadingsWindow(seconds=_WINDOW_S)
        poll(client, window)
        info = client.server_info()
        limit = info.get("max_req_input_len") if isinstance(info, dict) else None
        told = {"max_req_input_len": limit} if isinstance(limit, int) else {}
        results = full_set(
            client,
            model=round_.recipe.served_name,
            facts=round_.boot,
            plan=round_.plan,
            flags={**round_.recipe.flags, **round_.effective, **told},
            on_started=lambda name, number, of: publish(CheckStarted(name, number, of)),
            on_ended=lambda result: publish(CheckEnded(result)),
            cancel=cancel,
        )
        readings = poll(client, window)
    finally:
        client.close()
    session.history.save(loop.judged(round_, results, readings, cancelled=cancel.is_set()))
    return results


def _gateway(
    session: Session,
    base_url: str | None,
    key_env: str | None,
    models: Sequence[str],
    preset: str | None,
    cancel: threading.Event,
    *,
    as_json: bool,
) -> int:
    running = session.running()
    recipe = recipe_for(preset, ()) if preset else running.handle.recipe if running else None
    api = recipe.api if recipe is not None else ApiSettings()
    url = base_url or api.base_url
    if not url:
        raise UsageProblem("No gateway is named: give --base-url, or base_url in the [api] table of the recipe.")
    names = tuple(models) or ((recipe.served_name,) if recipe is not None else ())
    if not any(names):
        raise UsageProblem("No model is named: give --model, once for each.")
    asked = Gateway(base_url=url.rstrip("/"), key_variable=key_env or api.api_key_env)
    if api.timeout_seconds:
        asked = msgspec.structs.replace(asked, timeout_s=api.timeout_seconds)
    publish = narrator(quiet=as_json)
    try:
        checked = check_gateway(
            asked,
            names,
            os.environ,
            on_started=lambda name, number, of: publish(CheckStarted(name, number, of)),
            on_ended=lambda result: publish(CheckEnded(result)),
            cancel=cancel,
        )
    except GatewayError as error:
        raise UsageProblem(str(error)) from error
    local = _local(session)
    columns = [*([local] if local is not None else []), *checked]
    if as_json:
        print_json({"base_url": asked.base_url, "models": columns})
    else:
        say(side_by_side(columns))
    return DONE if all(model.passed for model in checked) else FAILED


def _local(session: Session) -> ModelChecked | None:
    """The same three checks as the running server's round has them, to stand beside."""
    running = session.running()
    if running is None or running.round is None:
        return None
    known = {check.name: check for check in running.round.checks}
    checks = tuple(known[name] for name in GATEWAY_SET if name in known)
    return ModelChecked(model=f"{running.round.name} (direct)", checks=checks) if checks else None


def side_by_side(columns: Sequence[ModelChecked]) -> str:
    """A line for each check, a column for each model; what did not pass is explained below."""
    by_model = [{check.name: check for check in column.checks} for column in columns]
    rows = [("check", *(clip(column.model, 40) for column in columns))]
    for name in GATEWAY_SET:
        cells = [f"{c[name].verdict}, {c[name].seconds:.2f} s" if name in c else "-" for c in by_model]
        rows.append((name, *cells))
    widths = [max(width(row[at]) for row in rows) for at in range(len(columns) + 1)]
    lines = ["  ".join(cell + " " * (widths[at] - width(cell)) for at, cell in enumerate(row)).rstrip() for row in rows]
    for column in columns:
        missed = [check for check in column.checks if check.verdict is not Verdict.PASS]
        lines += [f"{column.model}: {check.name}: {check.reason}" for check in missed]
    return "\n".join(lines)
