"""Run the stage `rl`: train a policy for one phase on selected questions.

The training is in the stage's workspace, so a later attempt resumes from the newest complete state. Documented in
docs/behaviour/rl.md.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from treadle.agent.tools.search_config import SearchToolSettings
from treadle.core.chat import ChatTokenizer
from treadle.core.config import Section, is_operational
from treadle.core.engines.base_model import base_model
from treadle.core.engines.model_hub import fetch_model
from treadle.core.engines.training import EngineOptions, find_machine, write_rows
from treadle.core.engines.training_run import StepProgress
from treadle.core.errors import ConfigError, StageFailed, TreadleError
from treadle.core.runs.stage import Progress, Stage, StageContext
from treadle.core.store.roots import is_object_store
from treadle.core.store.storage import storage_errors
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.environments.registry import ENVIRONMENTS, traits_of
from treadle.environments.scorers.registry import SCORERS
from treadle.environments.scorers.scoring import reads_all
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.config import RlSettings
from treadle.rl.credit.registry import CREDITS
from treadle.rl.groups.dump import read_steps
from treadle.rl.groups.web_snapshot import replayed
from treadle.rl.rewards.registry import REWARDS
from treadle.rl.training.checkpoint_checks import check_greedy, check_tokenizer, check_weights
from treadle.rl.training.curves import draw_curves, part_of, sparkline
from treadle.rl.training.events import RlStep, Validation
from treadle.rl.training.launch import EngineJob, Listener, Reinforcement, RlFolder, reinforce
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.training.report import engine_of, num_validation_misses, num_web_misses, record_metrics, render_report
from treadle.rl.training.stored_rows import (
    PAYLOAD_SCHEMA,
    Fits,
    FittingRows,
    payload_batches,
    prompt_fits,
    rows_to_train_on,
    validation_questions,
)
from treadle.rl.training.tables import RL_LOG, RL_ROLLOUTS, RL_VALIDATION
from treadle.rl.training_engine import RL_ENGINES
from treadle.rl.verl.rows import TRAINING_SCHEMA, validation_rows

_log = logging.getLogger(__name__)


class _RlProgress(StepProgress[RlStep]):
    """Reporter of steps and validations to the stage's progress, with sparklines of the latest steps."""

    def __init__(self, progress: Progress, shown_parts: Sequence[str] = ()) -> None:
        super().__init__(progress)
        self._shown_parts = shown_parts
        self._steps: list[RlStep] = []

    def facts(self, step: RlStep) -> dict[str, str | float]:
        """See `StepProgress.facts`."""
        self._steps.append(step)
        return {
            "reward": _curve([one.reward for one in self._steps], 2),
            "score": _curve([one.score for one in self._steps], 2),
            **{name: _curve([part_of(one, name) for one in self._steps], 2) for name in self._shown_parts},
            "calls": _curve([one.calls for one in self._steps], 2),
            "length": _curve([one.length for one in self._steps], 0),
        }

    def validation(self, validation: Validation) -> None:
        """Report a validation."""
        figures = validation.overall
        if figures.score is not None:
            self._progress.advance(0, validation=f"{figures.score:.2f} at step {validation.step}")


def _curve(values: Sequence[float | None], digits: int) -> str:
    newest = "-" if values[-1] is None else f"{values[-1]:.{digits}f}"
    return f"{newest} {sparkline(values)}".rstrip()


class RlRun:
    """State of one attempt of the stage."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: RlSettings = context.settings
        self._options = self._settings.options
        self._folder = RlFolder(context.workspace)
        self._commit = ""
        self._web_record = ""
        self._num_held_out = 0
        self._num_too_long = 0
        self._num_validation_too_long = 0

    def run(self) -> dict[str, Any]:
        """Train, or resume training, then check the policy, write the outputs and return the metrics."""
        replay_environment, self._web_record = replayed(
            self._settings.environment, self._context.store, self._folder.web
        )
        environment = local_environment(replay_environment)
        start = self._start()
        tokenizer = ChatTokenizer.load(start)
        fits = prompt_fits(self._settings.environment, tokenizer, self._options.max_prompt_tokens)
        num_rows, num_validation_rows = self._store_rows(fits), self._store_validation(fits)
        self._store_payloads()
        plan = self._plan(num_rows, num_validation_rows)
        progress = _RlProgress(self._context.progress, list(self._options.reward.PARTS)[:1])
        done = reinforce(
            self._folder,
            plan,
            EngineJob(
                model=str(start),
                environment=environment,
                interpreter=sys.executable,
                import_folders=import_folders(self._settings),
            ),
            EngineOptions(
                variant=plan.machine.variant,
                threads=self._options.threads,
                devices=self._options.devices,
                # With several nodes, Ray assigns the GPUs.
                num_devices=plan.machine.num_devices if plan.machine.num_nodes == 1 else None,
                stall_timeout_s=self._options.stall_timeout_s,
            ),
            Listener(begin=progress.begin, step=progress.step, validation=progress.validation, notify=_log.info),
        )
        self._check_checkpoint(done, start, tokenizer)
        return self._write(done, plan)

    def _start(self) -> Path:
        """Return the folder of the start policy; a hub id is pinned to the commit that the first attempt resolved."""
        options, checkpoints, key = self._options, self._context.inputs.get("checkpoint", ()), "rl.start"
        start = base_model(options.start, checkpoints, _log.info, key=key)
        if isinstance(start, Path):
            return start
        pinned = self._folder.start_commit
        commit = pinned.read_text(encoding="utf-8") if pinned.is_file() else options.revision
        folder = fetch_model(start, commit, _log.info, key=key)
        with storage_errors("write", pinned):
            pinned.parent.mkdir(parents=True, exist_ok=True)
            pinned.write_text(folder.name, encoding="utf-8")
        self._commit = folder.name
        return folder

    def _store_rows(self, fits: Fits) -> int:
        """Write the training rows for the engine; return their number."""
        rows = FittingRows(rows_to_train_on(self._context.inputs["rl_rows"]), fits)
        write_rows(self._folder.parquet, TRAINING_SCHEMA, rows.batches())
        self._num_too_long = rows.num_too_long
        if rows.num_too_long and rows.num_rows < self._options.prompts_per_step:
            raise ConfigError(
                f"{self._context.address}: {rows.num_too_long:,} of {rows.num_too_long + rows.num_rows:,} rows have "
                f"prompts longer than rl.max_prompt_tokens = {self._options.max_prompt_tokens}, and the "
                f"{rows.num_rows} others are fewer than rl.prompts_per_step = {self._options.prompts_per_step}; "
                "raise the former"
            )
        self._warn_about_long_prompts(rows, "rows")
        return rows.num_rows

    def _store_validation(self, fits: Fits) -> int:
        """Write the held-out questions for the engine if validation is enabled; return their number."""
        number, address = self._options.validation_questions, self._context.address
        if not number:
            return 0
        tables = self._context.inputs.get("questions", ())
        chosen, self._num_held_out = validation_questions(tables, number, self._settings.seed)
        if not chosen:
            raise ConfigError(
                f"{address}: rl.validation_questions = {number}, but there is no held-out question; let `questions` "
                "hold some out, or set it to 0"
            )
        if len(chosen) < number:
            _log.warning(
                "%s: only %d held-out questions for rl.validation_questions = %d", address, len(chosen), number
            )
        rows = FittingRows([validation_rows(chosen)], fits)
        write_rows(self._folder.validation, TRAINING_SCHEMA, rows.batches())
        self._num_validation_too_long = rows.num_too_long
        self._warn_about_long_prompts(rows, "validation questions")
        if not rows.num_rows:
            raise ConfigError(
                f"{address}: all {len(chosen):,} validation questions have prompts longer than rl.max_prompt_tokens = "
                f"{self._options.max_prompt_tokens}; raise it, or set rl.validation_questions = 0"
            )
        return rows.num_rows

    def _store_payloads(self) -> None:
        """Write the payloads of the rows for the engine, in a file of their own, if episodes or scorers read them."""
        is_read = traits_of(self._settings.environment).reads_payload
        if not is_read and not any(map(reads_all, self._settings.scorers.values())):
            return
        files = [path for path in (self._folder.parquet, self._folder.validation) if path.is_file()]
        keys = {key for path in files for key in pq.read_table(path, columns=["question_key"])[0].to_pylist()}
        batches = payload_batches(self._context.inputs.get("questions", ()), sorted(keys))
        found = write_rows(self._folder.payloads, PAYLOAD_SCHEMA, batches)
        if found != len(keys):
            raise StageFailed(
                f"{self._context.address}: {len(keys) - found:,} of {len(keys):,} tasks to train on are not among the "
                "questions read; bind the questions that the rows were selected from"
            )

    def _warn_about_long_prompts(self, rows: FittingRows, what: str) -> None:
        if rows.num_too_long:
            _log.warning(
                "%d of %d %s are left out: their prompts are longer than %d tokens (rl.max_prompt_tokens)",
                rows.num_too_long,
                rows.num_too_long + rows.num_rows,
                what,
                self._options.max_prompt_tokens,
            )

    def _plan(self, num_rows: int, num_validation_rows: int) -> RlPlan:
        options = self._options
        return plan_phase(
            self._settings,
            address=str(self._context.address),
            rows_digest=self._context.inputs["rl_rows"][0].digest,
            num_rows=num_rows,
            num_validation_rows=num_validation_rows,
            machine=find_machine(options.engine, options, options.num_nodes),
        )

    def _check_checkpoint(self, done: Reinforcement, start: Path, tokenizer: ChatTokenizer) -> None:
        """Raise StageFailed if the exported policy does not match its base model or the policy in training.

        The exported folder is then moved aside, so that the next attempt exports the policy again.
        """
        try:
            check_tokenizer(done.model, tokenizer)
            if not check_weights(done.model, start):
                _log.warning("%s has no safetensors files, so names and shapes were not compared", start)
            check_greedy(done.live_greedy, done.greedy)
        except TreadleError as failure:
            address, refused = self._context.address, self._folder.refused
            with storage_errors("move", done.model):
                shutil.rmtree(refused, ignore_errors=True)
                done.model.rename(refused)
            raise StageFailed(
                f"{address}: {failure}; see {refused}. The next attempt exports it again from the trained state; "
                f"`treadle stage {address} --force` trains again"
            ) from None

    def _write(self, done: Reinforcement, plan: RlPlan) -> dict[str, Any]:
        context = self._context
        context.write_telemetry(RL_LOG.kind, [step.as_row() for step in done.steps])
        context.write_telemetry(RL_VALIDATION.kind, [row for made in done.validations for row in made.as_rows()])
        for rows in read_steps(self._folder.rollouts, done.num_steps):
            context.write(RL_ROLLOUTS.kind, rows)
        context.write(CHECKPOINTS.kind, [self._row(done, plan)])
        report = render_report(plan, done, num_too_long=self._num_too_long, num_held_out=self._num_held_out)
        curves = draw_curves(done.steps, done.validations, done.chosen_step, plan.options.reward.PARTS)
        context.add_file(CHECKPOINTS.kind, "curves.svg", curves)
        context.add_file(CHECKPOINTS.kind, "report.md", report.encode())
        context.add_file(CHECKPOINTS.kind, "plan.json", plan.to_json().encode())
        metrics = record_metrics(plan, done, policy_in=self._policy_in(), num_too_long=self._num_too_long)
        context.add_folder(CHECKPOINTS.kind, MODEL_FOLDER, done.model)
        return {**metrics, "validation_too_long": self._num_validation_too_long, **self._web_metrics(done)}

    def _web_metrics(self, done: Reinforcement) -> dict[str, Any]:
        """Return the digest of the replayed web record and the numbers of unanswered searches.

        Empty if the environment does not search the web.
        """
        if not self._web_record:
            return {}
        number, in_validation = num_web_misses(done.steps), num_validation_misses(done.validations)
        calls = sum((step.calls or 0.0) * step.num_rollouts for step in done.steps)
        validation_calls = sum((made.overall.calls or 0.0) * made.overall.num_questions for made in done.validations)
        for misses, of, where in ((number, calls, ""), (in_validation, validation_calls, " in validation")):
            if misses:
                _log.warning(
                    "%s: %d of %d calls%s were searches that are not in the web record; the policy got the answer that "
                    "nothing was found",
                    self._context.address,
                    misses,
                    round(of),
                    where,
                )
        facts = {"web_record": self._web_record, "web_misses": number}
        return {**facts, "validation_web_misses": in_validation} if done.validations else facts

    def _row(self, done: Reinforcement, plan: RlPlan) -> dict[str, Any]:
        validation = done.chosen_validation
        return {
            **done.checkpoint_columns(),
            "name": plan.address,
            "base_model": plan.start,
            "base_digest": self._policy_in(),
            "finetuning_type": plan.options.finetuning_type,
            "num_rows": plan.num_rows,
            "num_target_tokens": None,
            "seed": plan.seed,
            "engine": engine_of(plan, done),
            "chosen_step": done.chosen_step,
            "first_reward": done.steps[0].reward,
            "last_reward": done.steps[-1].reward,
            "validation_correctness": validation.overall.score if validation else None,
        }

    def _policy_in(self) -> str:
        bound = self._context.inputs.get("checkpoint", ())
        return bound[0].digest if bound else self._settings.model_digest or self._commit


def import_folders(settings: RlSettings) -> tuple[Path, ...]:
    """Return the folders that an engine's process needs to import the types of users; see `Registry.import_folder`."""
    options = settings.options
    found = (
        ENVIRONMENTS.import_folder(settings.environment),
        REWARDS.import_folder(options.reward),
        CREDITS.import_folder(options.credit),
        RL_ENGINES.import_folder(options.engine),
        *map(SCORERS.import_folder, settings.scorers.values()),
    )
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))


def local_environment(settings: EnvironmentSettings) -> dict[str, Any]:
    """Return the environment's settings for an engine's process.

    Paths are absolute, because the process runs in another folder. Raises ConfigError for settings that are not
    supported in training.
    """
    if settings.summarizer is not None:
        raise ConfigError(
            "environment.search.summarizer: rl does not support it, because the policy reads documents itself; "
            "leave it out"
        )
    search = settings.search_tool
    if search is not None:
        if search.prepared is not None and not search.prepared.is_absolute():
            raise ConfigError(f"environment.search.prepared: rl needs an absolute path: {search.prepared.absolute()}")
        _check_route(search)
    dumped: dict[str, Any] = _absolute(settings).model_dump(mode="json")
    return dumped


def _check_route(search: SearchToolSettings) -> None:
    """Raise ConfigError if questions are routed individually, because training rows do not say where to search."""
    if search.web is not None and search.uses_web and search.route == "auto" and search.has_local:
        raise ConfigError(
            'environment.search.route = "auto": rl searches for all questions in one place; set local, web or both'
        )


def _absolute(section: Any) -> Any:
    """Return the section with absolute paths in its operational keys; other keys belong to the environment's digest."""
    changed: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            changed[name] = _absolute(value)
        elif is_operational(field) and isinstance(value, Path):
            changed[name] = _absolute_path(value)
        elif is_operational(field) and isinstance(value, tuple):
            changed[name] = tuple(_absolute_path(one) if isinstance(one, Path) else one for one in value)
    return section.model_copy(update=changed)


def _absolute_path(path: Path) -> Path:
    """Return an absolute path, or the path itself if it stands for an object store's URL."""
    return path if is_object_store(path) else path.expanduser().absolute()


def run(context: StageContext) -> Mapping[str, Any]:
    """Train a policy for one phase and return the facts of its manifest."""
    return RlRun(context).run()


RL_STAGE = Stage(
    name="rl",
    version=4,
    settings=RlSettings,
    consumes={"rl_rows": "rl_rows", "questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"questions", "checkpoint"}),
    produces=(CHECKPOINTS, RL_ROLLOUTS),
    telemetry=(RL_LOG, RL_VALIDATION),
    depends_on_address=True,
    run=run,
)
