"""From the open port to the end: uvicorn, warm-up, readiness, signals, and the ways to die."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
from collections.abc import Coroutine, Iterator

import msgspec
import uvicorn

from tuner.sim import tracebacks
from tuner.sim.api import build_app
from tuner.sim.cache import PrefixCache
from tuner.sim.card import CardSlot
from tuner.sim.engine import CardView, Engine
from tuner.sim.faults import Fault
from tuner.sim.flags import Options
from tuner.sim.journal import Output, say, uvicorn_log_config, write
from tuner.sim.limits import Limits
from tuner.sim.pace import Pace
from tuner.sim.scheduler import Scheduler
from tuner.sim.service import Built, Service, Status
from tuner.sim.speed import Speed
from tuner.sim.startup import Player, Processes, end, kill_self, name_of
from tuner.sim.stats import Stats

#: uvicorn's exit status when it could not start.
STARTUP_FAILURE = 3
_READY = "The server is fired up and ready to roll!"
#: Recorded seconds: the drain looks this often, the schedulers take this long to leave.
_DRAIN_POLL_S = 5.0
_LEAVE_S = 2.0
_CRASH_WAIT_S = 5.0
_WATCHDOG_S = 1.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: SGLang's own are in force."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """One serving process."""

    def __init__(
        self, built: Built, options: Options, player: Player, processes: Processes, card: CardSlot, others_gib: float
    ) -> None:
        self._options = options
        self._faults = options.faults
        self._pace = Pace(options.speed)
        self._player = player
        self._processes = processes
        self._card = card
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        stats = Stats()
        plan, setup = built.pools.plan, built.setup
        acceptance = 0.0 if self._faults.has(Fault.ACCEPTANCE_LENGTH_1) else options.acceptance
        limits = Limits(
            max_running=plan.max_running_requests,
            chunk=setup.chunk,
            policy=str(built.values.get("schedule_policy")),
            context_len=plan.context_len,
            draft_tokens=setup.draft_tokens,
            acceptance=acceptance,
            decode_graphs=bool(built.graphs_gib["decode"] or built.graphs_gib["target_verify"]),
            prefill_graphs=bool(built.graphs_gib["prefill"]),
            max_queued=built.values.get("max_queued_requests"),
            warmed_up=setup.warmup,
            conservativeness=float(built.values.get("schedule_conservativeness") or 1.0),
            limit_shift=-1 if self._faults.has(Fault.LIMIT_OFF_BY_ONE) else 0,
        )
        vocabulary = built.model.shape.vocab_size
        kept = built.pools.kept_states
        lost = self._faults.number(Fault.SLOTS_LOST)
        if lost is not None:
            kept = msgspec.structs.replace(kept, slots=max(1, int(kept.slots * (1 - lost))))
        scheduler = Scheduler(PrefixCache(kept), limits, Speed(options), stats, self._faults, vocabulary)
        scheduler.refresh()
        view = CardView(
            player.held_gib, built.available_gib, card.card.total_mib / 1024, others_gib, self._card.publish
        )
        self._engine = Engine(
            scheduler, self._pace, self._faults, view, self._scheduler_died, kernel_missing=setup.kernel_missing
        )
        self.service = Service(built, self._engine, stats, self._pace, self._faults)
        self._host = str(built.values["host"])
        self._port = int(built.values["port"])
        config = uvicorn.Config(
            build_app(self.service, self._at_startup),
            host=self._host,
            port=self._port,
            log_config=uvicorn_log_config(),
            lifespan="on",
            loop="asyncio",
            http="h11",
            ws="none",
            timeout_keep_alive=5,
        )
        self._server = _Server(config)

    # --- start -----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serves until the end. Returns the exit status, if the process lives to have one."""
        try:
            asyncio.run(self._serve())
        except SystemExit:
            # uvicorn leaves so when the port is taken
            say(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
            self._leave()
            return STARTUP_FAILURE
        say(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=False, pid={os.getpid()}")
        self._leave()
        return 0

    def _leave(self) -> None:
        self._processes.kill()
        if not self._faults.has(Fault.HOLD_VRAM):
            self._card.remove()

    async def _serve(self) -> None:
        self._install_signals()
        await self._server.serve()

    def _at_startup(self) -> None:
        say(
            "Using default chat sampling params from model generation config: "
            "{'temperature': 0.7, 'top_k': 20, 'top_p': 0.8}"
        )
        if not self.service.built.setup.warmup:
            say(_READY)
            self.service.status = Status.UP
        self._spawn(self._after_bind())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after_bind(self) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        self._spawn(self._watch_children())
        if self._faults.text(Fault.HANG) == "warming":
            await asyncio.Event().wait()
        if self.service.built.setup.warmup:
            await asyncio.to_thread(self._warm_up)
            if not self._engine.alive:
                return
            self.service.status = Status.UP
            say(_READY)
        self._engine.ready_at = asyncio.get_running_loop().time()
        await self._die_after_ready()

    def _warm_up(self) -> None:
        """The requests that SGLang sends itself over HTTP."""
        host = "127.0.0.1" if self._host in ("0.0.0.0", "::", "") else self._host
        headers = {"Content-Type": "application/json"}
        if self.service.api_key:
            headers["Authorization"] = f"Bearer {self.service.api_key}"
        body = json.dumps({"input_ids": list(range(10, 21)), "sampling_params": {"max_new_tokens": 8}})
        for method, path, payload in (("GET", "/model_info", None), ("POST", "/generate", body)):
            connection = http.client.HTTPConnection(host, self._port, timeout=600)
            with contextlib.closing(connection):
                try:
                    connection.request(method, path, payload, headers)
                    connection.getresponse().read()
                except (OSError, http.client.HTTPException) as error:
                    if not self._ending and self._engine.alive:
                        say(f"Initialization failed. warmup error: {error}")
                    return

    # --- ends ------------------------------------------------------------------------------------------------------

    async def _die_after_ready(self) -> None:
        silently = self._faults.number(Fault.DIE_SILENTLY)
        if silently is not None:
            await asyncio.sleep(silently)
            kill_self()
        crash = self._faults.number(Fault.DIE_AFTER_READY)
        if crash is not None:
            await asyncio.sleep(crash)
            self._engine.alive = False
            self._scheduler_died(tracebacks.scheduler_gone())

    async def _watch_children(self) -> None:
        while not self._ending:
            await asyncio.sleep(_WATCHDOG_S)
            child = self._processes.dead()
            if child is not None and not self._ending:
                say(
                    f"Subprocess {name_of(self._processes, child)} (pid={child.pid}) crashed with exit code "
                    f"{child.returncode}. Triggering SIGQUIT for cleanup..."
                )
                self._engine.alive = False
                await self._crash(())
                return

    def _scheduler_died(self, error: Output) -> None:
        self._spawn(self._crash((error,)))

    async def _crash(self, error: tuple[Output, ...]) -> None:
        if self._ending:
            return
        self._ending = True
        self.service.status = Status.DRAINING
        write(*error)
        first, last = tracebacks.died_while_serving(os.getpid())
        write(*first)
        await self._pace.stop(_CRASH_WAIT_S)
        write(*last)
        end(self._processes, self._card, keep_entry=self._faults.has(Fault.HOLD_VRAM))

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        deaf = self._faults.has(Fault.IGNORE_SIGNALS)
        if not deaf and not self._faults.has(Fault.IGNORE_SIGTERM):
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
        if not deaf:
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
            loop.add_signal_handler(signal.SIGQUIT, lambda: self._spawn(self._crash(())))

    def _interrupt(self) -> None:
        self._ending = True
        self._server.should_exit = True

    def _terminate(self) -> None:
        if not self._ending:
            self._ending = True
            self._spawn(self._drain())

    async def _drain(self) -> None:
        say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.service.status = Status.DRAINING
        while True:
            await self._pace.stop(_DRAIN_POLL_S)
            left = [request.rid for request in self._engine.scheduler.in_flight]
            say(
                f"Gracefully exiting... Remaining number of requests {len(left)}. "
                f"Remaining requests remaining_rids={left}."
            )
            if not left:
                break
            if not self._pace.factor:
                await asyncio.sleep(0.05)
        await self._pace.stop(_LEAVE_S / 2)
        write(tracebacks.process_group_warning())
        await self._pace.stop(_LEAVE_S / 2)
        say(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
        end(self._processes, self._card, keep_entry=self._faults.has(Fault.HOLD_VRAM))
