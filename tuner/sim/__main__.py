"""``python -m tuner.sim``: the stand-in server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from tuner.modelcard import ModelError
from tuner.planner import CannotPlan
from tuner.sim import tracebacks
from tuner.sim.bootlog import Died
from tuner.sim.card import MIB_PER_GIB, CardError, CardSlot
from tuner.sim.faults import Fault, Faults
from tuner.sim.flags import parse
from tuner.sim.journal import TRAP, say, write
from tuner.sim.model import NoModel, resolve
from tuner.sim.sizing import set_up
from tuner.sim.startup import Processes, Start, die_while_starting


def _ignore_signals(faults: Faults) -> None:
    if faults.has(Fault.IGNORE_SIGTERM) or faults.has(Fault.IGNORE_SIGNALS):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if faults.has(Fault.IGNORE_SIGNALS):
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def main(argv: Sequence[str] | None = None) -> int:
    """Starts, serves, ends as SGLang does. Returns the exit status; most ends are by signal."""
    command = parse(sys.argv[1:] if argv is None else argv)
    faults = command.options.faults
    TRAP.text = faults.text(Fault.DIE_AT)
    try:
        model = resolve(command.flags, command.options)
        card = CardSlot(command.options.card)
        setup = set_up(
            command.flags,
            model,
            command.options,
            card_gib=card.card.total_mib / MIB_PER_GIB,
            free_gib=card.free_gib(),
            environment={name: value for name, value in os.environ.items() if name.startswith("SGLANG_")},
        )
    except CannotPlan as error:
        say(f"ValueError: {error}")
        return 1
    except NoModel as error:
        write(tracebacks.model_missing(str(error)))
        return 1
    except ModelError as error:
        say(f"OSError: {error}")
        return 1
    except CardError as error:
        say(str(error))
        return 1
    processes = Processes(faults)
    # after the helpers, which would inherit it
    _ignore_signals(faults)
    start = Start(command, model, setup, card)
    card.attach(processes.scheduler.pid)
    try:
        built = start.run(processes.scheduler.pid)
    except Died as died:
        die_while_starting(died, processes, card)
    from tuner.sim.serving import Serving

    serving = Serving(built, command.options, start.player, processes, card, start.others_gib)
    return serving.run()


if __name__ == "__main__":
    sys.exit(main())
