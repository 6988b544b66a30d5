"""Why a start or a server died. Rules in order: the nearer cause first, its consequences after it.

Texts are those of SGLang 0.5.2 to 0.5.23. An exit status alone is never evidence: 0.5.17 ends with -9 after a clean
stop, a refused sizing and a kernel error alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.doctor import command_line, kernel_causes, machine_causes, memory_causes, roles, sizing_causes, upstream
from tuner.doctor.case import LogCase, finding
from tuner.doctor.cause import Rule
from tuner.doctor.traces import AFTERMATH, EXCEPTION, is_generic
from tuner.findings import Finding, FindingId, Severity


def _unknown(case: LogCase) -> Finding | None:
    exception = next((x for x in reversed(case.lines) if EXCEPTION.match(x) and not is_generic(x)), None)
    last = [line for line in case.tail if not AFTERMATH.search(line)][-5:]
    evidence = dict.fromkeys((*(() if exception is None else (exception,)), *last))
    return finding(
        FindingId.UNKNOWN,
        Severity.FATAL,
        f"The server died (it had reached: {case.reached}) of something the tuner does not know.",
        evidence=evidence,
        remedy="Read the end of the log; where it says nothing, the kernel's log (journalctl -k) tells of kills.",
    )


RULES: tuple[tuple[str, Rule], ...] = (
    ("unknown flag", command_line.unknown_flag),
    ("module", command_line.module_missing),
    ("model", command_line.model_missing),
    ("driver", machine_causes.no_driver),
    ("context", command_line.context_too_long),
    ("flags apart", command_line.flags_apart),
    ("known fault", upstream.known_fault),
    ("roles", roles.transfer_refused),
    # Another process on the card makes every size look wrong.
    ("gpu busy", memory_causes.gpu_busy),
    ("slots negative", sizing_causes.slots_negative),
    ("no room", sizing_causes.no_room_at_sizing),
    ("host cache", machine_causes.host_cache),
    ("tool chain", machine_causes.tool_chain),
    ("checkpoint", kernel_causes.checkpoint_unfit),
    ("slot assert", memory_causes.slot_assert),
    ("out of memory", memory_causes.out_of_memory),
    ("peer access", kernel_causes.peer_access),
    ("kernel", kernel_causes.kernel_crash),
    ("capture", kernel_causes.capture_failed),
    ("double start", machine_causes.double_start),
    ("port", machine_causes.port_in_use),
    ("proxy", machine_causes.proxy_in_the_way),
    ("shared memory", machine_causes.shared_memory_full),
    ("watchdog", machine_causes.watchdog),
    ("host memory", machine_causes.host_memory_kill),
    ("silent end", machine_causes.silent_end),
    ("unknown", _unknown),
)


def cause_of_death(case: LogCase, rules: Iterable[tuple[str, Rule]] = RULES) -> Finding | None:
    """The nearest cause, by the first rule that knows it."""
    return next((found for _, rule in rules if (found := rule(case))), None)
