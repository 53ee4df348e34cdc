"""Run the model servers of a flow.

A server is started when a stage needs it, kept for later stages, and stopped if another stage needs its GPUs.

One object does this for the duration of a flow; it is given the instances that have not run yet. It also ensures that
training and serving have their GPUs exclusively on the whole machine. Documented in docs/behaviour/engines.md, parts
"Servers of a flow" and "Devices".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from treadle.core.engines.cache import Notify, quiet
from treadle.core.engines.config import VllmServer
from treadle.core.engines.gpu_claims import GpuClaims, OccupiedGpu
from treadle.core.engines.serving import ServedModel, serve, still_answers
from treadle.core.errors import ConfigError, EngineError, RunError
from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.execute import planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.core.store.locks import FileLease
from treadle.stages.models import checkpoint_of
from treadle.tasks.serving.device_shares import (
    CPU,
    Shares,
    check_devices_fit,
    device_names,
    oversubscribed,
    server_shares,
    sum_shares,
    training_shares,
)
from treadle.tasks.serving.served_models import ServerSpec, known_specs, served_models, server_spec, with_models

DEVICE_WAIT_S = 86_400.0
"""Default time that a stage waits for GPUs of another process."""
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A server that was started."""

    spec: ServerSpec
    served: ServedModel
    stack: ExitStack

    @property
    def shares(self) -> Shares:
        """Device shares that the server takes."""
        return server_shares(self.spec.server)


class ModelServers:
    """Servers that a flow has started, as a context manager: at its end all are stopped and no GPU is claimed.

    Serves one flow at a time: instances run one after the other, each any number of times.
    """

    def __init__(
        self,
        run: Run,
        upcoming: Sequence[Instance] = (),
        *,
        forced: Collection[Address] = (),
        wait_s: float = DEVICE_WAIT_S,
        notify: Notify = quiet,
    ) -> None:
        """Set up without starting servers.

        `upcoming`: instances of the flow in order; `forced`: those that run even if they have a result.
        """
        self._run, self._upcoming, self._forced = run, upcoming, frozenset(forced)
        self._wait_s, self._notify = wait_s, notify
        self._running: list[_Running] = []
        self._claims = GpuClaims()

    def __enter__(self) -> ModelServers:
        """Raise ConfigError for an instance that cannot be served on this machine, before any instance runs."""
        for item in self._upcoming:
            try:
                check_devices_fit(item)
            except ConfigError:
                if self._will_run(item, ()):
                    raise
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:
            ends.callback(self._claims.keep, ())
            for one in self._running:
                ends.push(one.stack)
            self._running = []

    @contextmanager
    def serving(self, instance: Instance, has_work: Callable[[], bool]) -> Iterator[Instance]:
        """Yield the instance with its models served and the GPUs for its training free, for the duration of a block.

        If `has_work` returns false, nothing is started; it is called again while waiting for GPUs. Raises ConfigError
        for servers that do not fit on the devices together, EngineError for one that does not start and for GPUs that
        another process does not release in time, RunError for a missing checkpoint.
        """
        if not has_work():
            self._stop_unneeded(instance.address)
            yield instance
            return
        try:
            yield self._prepare(instance, has_work)
        except BaseException:
            self._report_exited(f"while {instance.address} was running")
            raise
        finally:
            self._claims.keep(self._gpus_in_use())
        self._stop_unneeded(instance.address)

    def _prepare(self, instance: Instance, has_work: Callable[[], bool]) -> Instance:
        check_devices_fit(instance)
        models = served_models(instance.settings)
        wanted = [server_spec(model, self._run) for model in models]
        takes = [*map(server_shares, (spec.server for spec in wanted)), training_shares(instance.settings)]
        self._report_exited(f"before {instance.address}")
        self._make_room(instance.address, wanted, takes)
        gpus = {device for shares in takes for device in shares if device != CPU}
        if not self._claim(gpus, instance.address, has_work):
            return instance
        reachable = [(model, self._ensure_served(model, spec)) for model, spec in zip(models, wanted, strict=True)]
        return replace(instance, settings=with_models(instance.settings, reachable)) if reachable else instance

    def _make_room(self, address: Address, wanted: Sequence[ServerSpec], takes: Sequence[Shares]) -> None:
        """Stop servers that use a device or a port that is needed now."""
        ports = {spec.server.port for spec in wanted} - {0}
        total = sum_shares(takes)
        for one in [one for one in self._running if one.spec not in wanted]:
            if full := oversubscribed(sum_shares([total, one.shares])) & one.shares.keys():
                self._stop(one, f"{address} needs {device_names(full)}")
            elif one.spec.server.port in ports:
                self._stop(one, f"{address} needs its port")
            else:
                total = sum_shares([total, one.shares])
        self._claims.keep(self._gpus_in_use())

    def _claim(self, gpus: Collection[str], address: Address, has_work: Callable[[], bool]) -> bool:
        """Claim all these GPUs; return False if no work is left after a wait."""
        doing = f"{address} of run {self._run.run_id}"
        with ExitStack() as announced:
            occupied, told, ends = self._claims.take(gpus, doing), "", time.monotonic() + self._wait_s
            while occupied is not None:
                if time.monotonic() >= ends:
                    raise EngineError(
                        f"{doing} waited {self._wait_s:g} s (flow.device_wait_s): {occupied}; wait until that ends, "
                        "stop it, or name other `devices`"
                    )
                # Hold nothing while waiting: two processes that wait for each other would deadlock.
                for one in [one for one in self._running if one.shares.keys() - {CPU}]:
                    self._stop(one, f"{doing} has to wait")
                self._claims.keep(self._gpus_in_use())
                if str(occupied) != told:
                    told = str(occupied)
                    announced.close()
                    announced.enter_context(self._announced(address, occupied))
                    self._notify(f"{doing} waits: {told}")
                time.sleep(min(_POLL_S, self._wait_s))
                if not has_work():
                    return False
                occupied = self._claims.take(gpus, doing)
        return True

    @contextmanager
    def _announced(self, address: Address, occupied: OccupiedGpu) -> Iterator[None]:
        """Let `treadle status` on this machine show a wait, since no attempt has started yet."""
        with ExitStack() as stack:
            with suppress(RunError):  # Another process already waits for the same GPUs.
                path, pid = self._run.waiting_path(address), occupied.holder.pid if occupied.holder else "another"
                lease = FileLease(path, f"the wait of {address}", doing=f"GPU {occupied.gpu} of process {pid}")
                stack.callback(lease.release)
            yield

    def _ensure_served(self, model: ModelSettings, spec: ServerSpec) -> ModelSettings:
        """Return the model with its endpoint; start its server unless it is running."""
        one = next((one for one in self._running if one.spec == spec), None)
        if one is not None and not still_answers(one.served):
            self._stop(one, "it no longer answers and is started again")
            one = None
        if one is None:
            with ExitStack() as stack:
                settings = spec.settings(self._run)
                if (made := checkpoint_of(model)) is not None:
                    self._notify(f"{spec.model} gets the weights of {made}")
                served = stack.enter_context(serve(settings, model_name=spec.model, notify=self._notify))
                one = _Running(spec, served, stack.pop_all())
            self._running.append(one)
        return model.model_copy(
            update={
                "endpoints": (EndpointSettings(url=one.served.url),),
                "tokenizer": model.tokenizer or one.served.tokenizer_folder,
            }
        )

    def _stop_unneeded(self, address: Address) -> None:
        needed = self._needed_after(address)
        for one in [one for one in self._running if one not in needed]:
            self._stop(one)
        self._claims.keep(self._gpus_in_use())

    def _stop(self, one: _Running, why: str = "") -> None:
        if why:
            self._notify(f"stopping {one.served.child.name}: {why}")
        self._running.remove(one)
        one.stack.close()

    def _report_exited(self, when: str) -> None:
        """Report and forget servers that have ended on their own."""
        for one in [one for one in self._running if one.served.child.poll() is not None]:
            child = one.served.child
            self._notify(f"{child.name} exited with code {child.poll()} {when}; log: {child.log_path}")
            self._stop(one)

    def _gpus_in_use(self) -> set[str]:
        return {device for one in self._running for device in one.shares} - {CPU}

    def _needed_after(self, address: Address) -> list[_Running]:
        """Return running servers that a later instance will need, as far as that is known."""
        found: list[_Running] = []
        working: set[Address] = set()
        for item in self._after(address):
            left = [one for one in self._running if one not in found]
            if not left:
                break
            if self._will_run(item, working):
                working.add(item.address)
                wanted = list(known_specs(item, self._run))
                found += [one for one in left if one.spec in wanted]
        return found

    def _after(self, address: Address) -> Sequence[Instance]:
        places = [place for place, item in enumerate(self._upcoming) if item.address == address]
        return self._upcoming[places[0] + 1 :] if places else ()

    def _will_run(self, item: Instance, working: Collection[Address]) -> bool:
        """Return whether an instance will run, given the earlier ones that will."""
        if item.address in self._forced or any(one in working for bound in item.inputs.values() for one in bound):
            return True
        return planned_action(item, self._run) in ("run", "missing input")


def serve_until_interrupted(server: VllmServer, *, notify: Notify) -> NoReturn:
    """Serve a model until Ctrl-C or SIGTERM; raise EngineError if the server ends on its own or its GPU is in use."""
    claims = GpuClaims()
    if (occupied := claims.take(server_shares(server).keys() - {CPU}, "treadle serve")) is not None:
        raise EngineError(f"{occupied}; wait until that ends, stop it, or choose another GPU by CUDA_VISIBLE_DEVICES")
    with serve(server, notify=notify) as served:
        notify(f"serving {served.model} at {served.url}; stop with Ctrl-C")
        if served.tokenizer_folder is not None:
            notify(f"tokenizer: {served.tokenizer_folder}")
        served.child.wait()
        raise served.child.failure("ended")
