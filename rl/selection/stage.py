"""Run the stage `selection`: choose the questions that are worth reinforcement learning, from scored rollouts.

Scores are read twice: once for sums per question, once for the rollouts of the selected ones. Rows are sorted through
files, so memory grows by less than 1 KiB per question and does not depend on the number of rollouts or the length of
texts. Documented in docs/behaviour/selection.md.
"""

from __future__ import annotations

import itertools
import logging
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from treadle.agent.contract import TASK_COLUMNS, Task
from treadle.core.errors import ArtifactError, DataError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.core.seeds import derive_seed
from treadle.core.store.buckets import Buckets, bucket_count, draw
from treadle.environments.mixture import table_of, unknown_environment
from treadle.environments.opening import shown_messages
from treadle.rl.rewards.base import FAILED
from treadle.rl.selection.choice import OVER_QUOTA, SELECTED, Choice, choose
from treadle.rl.selection.dispersion import Dispersion, DispersionSums
from treadle.rl.selection.report import (
    EarlierPhase,
    SelectionFindings,
    draw_selection,
    metrics_of,
    quota_note,
    render_report,
)
from treadle.rl.selection.settings import SelectionSettings
from treadle.rl.selection.tables import RL_REJECTIONS, RL_ROWS
from treadle.rl.verl.rows import verl_row

_log = logging.getLogger(__name__)

_COUNTED = ("rollout_key", "question_key", "dataset", "domain", "model", "status", "score", "calls_executed")
_OUTCOME = ("question_key", "rollout_key", "status", "score", "calls_executed")
_ASKED = (*TASK_COLUMNS, "answers")
_ROWS_PER_BUCKET = 1_024


class _Questions:
    """Questions seen so far, numbered from 0. Names of data sets and domains are interned, because they repeat."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.datasets: list[str] = []
        self.domains: list[str] = []
        self.environments: list[str] = []

    @property
    def keys(self) -> list[str]:
        """Question keys by number."""
        return list(self.numbers)

    def of(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the question's number for each row of `scores`."""
        encoded = pc.dictionary_encode(batch["question_key"])
        local = encoded.indices.to_numpy()
        _, first = np.unique(local, return_index=True)
        heads = batch.select(["dataset", "domain"]).take(pa.array(first)).to_pylist()
        numbers = np.empty(len(heads), np.int64)
        for place, (key, head) in enumerate(zip(encoded.dictionary.to_pylist(), heads, strict=True)):
            number = self.numbers.setdefault(key, len(self.numbers))
            if number == len(self.datasets):
                self.datasets.append(sys.intern(head["dataset"]))
                self.domains.append(sys.intern(head["domain"]))
            numbers[place] = number
        found: np.ndarray = numbers[local]
        return found


class _SelectionRun:
    """State of one run of the stage."""

    def __init__(self, context: StageContext) -> None:
        settings: SelectionSettings = context.settings
        self._context = context
        self._settings = settings
        self._options = settings.options
        self._environment_digests = settings.environment_digests()
        self._questions = _Questions()
        self._models: set[str] = set()
        self._num_failed = 0
        self._num_unscored = 0

    def run(self) -> dict[str, Any]:
        """Select questions, write all outputs and return the metrics."""
        num_rollouts = sum(table.num_rows for table in self._context.inputs["scores"])
        self._context.progress.start(2 * num_rollouts, 0, "rollouts")
        sums = self._count()
        held_out = self._held_out()
        earlier, totals = self._earlier(), sums.totals()
        choice = choose(
            self._questions.keys,
            totals,
            self._questions.domains,
            options=self._options,
            held_out=held_out,
            selected_before=np.any([one.mask for one in earlier], axis=0) if earlier else np.zeros(len(held_out), bool),
            spans=_spans(self._questions.environments, totals),
            seed=derive_seed(self._settings.seed, "selection", self._settings.phase),
        )
        self._check_choice(choice)
        self._write_rows(choice)
        self._write_rejections(choice)
        found = SelectionFindings(
            choice,
            self._questions.datasets,
            self._questions.environments,
            earlier,
            self._num_failed,
            self._num_unscored,
        )
        report = render_report(found, self._settings.phase)
        self._context.add_file(RL_ROWS.kind, "selection.svg", draw_selection(choice))
        self._context.add_file(RL_ROWS.kind, "report.md", report.encode())
        return metrics_of(found)

    # First pass: collect the statistics of each question.

    def _count(self) -> DispersionSums:
        sums = DispersionSums(*self._range())
        rollouts = self._rollout_keys()
        for batch in self._score_batches():
            self._check_pairs(batch["rollout_key"].to_pylist(), rollouts)
            self._models.update(batch["model"].unique().to_pylist())
            sums.add(self._questions.of(batch), batch["calls_executed"].to_numpy(), self._correctness(batch))
            self._context.progress.advance(batch.num_rows)
        if (spare := next(rollouts, None)) is not None:
            raise ArtifactError(f"rollout {spare} has no score; run `scores` again on the rollouts that are read here")
        if len(self._models) > 1:
            raise StageFailed(
                f"{self._context.address}: the rollouts come from several models ({', '.join(sorted(self._models))}); "
                "the selection needs those of one policy: bind only its rollouts"
            )
        return sums

    def _range(self) -> tuple[float, float]:
        """Return the range of correctness: [0, 1], or that of the rewards if it is wider."""
        low, high = 0.0, 1.0
        for table in self._context.inputs["scores"]:
            for batch in table.batches(["score"]):
                found = pc.min_max(batch["score"])
                if found["min"].is_valid:
                    low, high = min(low, found["min"].as_py()), max(high, found["max"].as_py())
        return low, high

    def _correctness(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the score of each rollout, nan if it is not usable; count the unusable ones by cause."""
        failed = batch["status"].to_numpy(zero_copy_only=False) == FAILED
        scores: np.ndarray = batch["score"].to_numpy(zero_copy_only=False).astype(np.float64)
        self._num_failed += int(failed.sum())
        self._num_unscored += int((np.isnan(scores) & ~failed).sum())
        return np.where(failed, np.nan, scores)

    def _score_batches(self) -> Iterator[pa.RecordBatch]:
        return (batch for table in self._context.inputs["scores"] for batch in table.batches(_COUNTED))

    def _rollout_keys(self) -> Iterator[str]:
        """Yield the keys of the rollouts in their order; raise StageFailed if one comes from another environment."""
        known = self._environment_digests.by_name
        for table in self._context.inputs["rollouts"]:
            for batch in table.batches(["rollout_key", "environment", "environment_digest"]):
                pairs = zip(batch["environment"].to_pylist(), batch["environment_digest"].to_pylist(), strict=True)
                for name, digest in sorted(set(pairs)):
                    if name not in known:
                        raise DataError(unknown_environment(name, known))
                    if digest not in known[name]:
                        raise StageFailed(
                            f"rollouts were made in environment {digest[:12]}, but the configuration describes "
                            f"{known[name].plain[:12]}: another prompt, other tools or limits; run `rollouts` again, "
                            f"or restore the [{table_of(name)}] that it was run with"
                        )
                yield from batch["rollout_key"].to_pylist()

    def _check_pairs(self, scored: Sequence[str], rollouts: Iterator[str]) -> None:
        made = list(itertools.islice(rollouts, len(scored)))
        if made == scored:
            return
        place = next(place for place, pair in enumerate(itertools.zip_longest(made, scored)) if pair[0] != pair[1])
        what = f"rollout {made[place]} has no score" if place < len(made) else f"score {scored[place]} has no rollout"
        raise ArtifactError(f"{what} at its position; run `scores` again on the rollouts that are read here")

    def _held_out(self) -> np.ndarray:
        """Return the mask of held-out questions; raise ArtifactError for a question that is not in `questions`.

        Fills in the environments of the questions.
        """
        self._questions.environments = [""] * len(self._questions.numbers)
        held_out = np.zeros(len(self._questions.numbers), bool)
        known = np.zeros(len(self._questions.numbers), bool)
        for table in self._context.inputs["questions"]:
            for batch in table.batches(["question_key", "split", "environment"]):
                columns = (batch[name].to_pylist() for name in ("question_key", "split", "environment"))
                for key, split, environment in zip(*columns, strict=True):
                    if (number := self._questions.numbers.get(key)) is not None:
                        known[number] = True
                        held_out[number] = split != "train"
                        self._questions.environments[number] = sys.intern(environment)
        if not known.all():
            key = self._questions.keys[int(np.argmin(known))]
            raise ArtifactError(
                f"rollouts answer question {key}, which is not among the questions read; bind the questions that the "
                "rollouts were made from"
            )
        return held_out

    def _earlier(self) -> list[EarlierPhase]:
        """Return the questions of earlier phases that occur among the current ones."""
        found = []
        for table in self._context.inputs.get("previous", ()):
            mask = np.zeros(len(self._questions.numbers), bool)
            phase = 0
            for batch in table.batches(["question_key", "phase"]):
                phase = batch["phase"][0].as_py() if batch.num_rows else phase
                for key in batch["question_key"].to_pylist():
                    if (number := self._questions.numbers.get(key)) is not None:
                        mask[number] = True
            found.append(EarlierPhase(phase, table.num_rows, mask))
        return found

    def _check_choice(self, choice: Choice) -> None:
        counts = choice.counts()
        counts_text = ", ".join(f"{code} {count:,}" for code, count in counts.items() if count)
        if counts["selected"]:
            _log.info(
                "%s: %s%s", self._context.address, counts_text, f"; {note}" if (note := quota_note(choice)) else ""
            )
            return
        without = sorted({choice.domains[number] for number in np.flatnonzero(choice.decisions == OVER_QUOTA).tolist()})
        hints = {
            "held_out": "all are held out: let the rollouts answer questions of the split train",
            "selected_before": "all were trained on before: add questions, or turn exclude_previous off",
            "too_few_rollouts": "make more rollouts per question, or lower min_rollouts",
            "all_right": "the policy answers all of them: ask harder questions, or raise the temperature of the "
            "rollouts",
            "all_wrong": "the policy answers none of them: train it further, or ask easier questions",
            "over_quota": f"selection.quotas has 0 for {', '.join(without)}: raise it",
        }
        # Raising a quota is the smallest change that gives rows, however few questions it affects.
        most = "over_quota" if without else max(counts, key=lambda code: counts[code])
        hint = hints.get(most, "let the rollouts answer questions")
        raise StageFailed(f"{self._context.address}: no question is left to train on ({counts_text}); {hint}")

    # Second pass: put the rollouts and texts of the selected questions into buckets by position, then write each
    # bucket.

    def _write_rows(self, choice: Choice) -> None:
        chosen = np.flatnonzero(choice.decisions == SELECTED)
        folder, count = self._context.scratch, bucket_count(len(chosen), _ROWS_PER_BUCKET)
        with Buckets(folder / "rollouts", count) as rollouts, Buckets(folder / "asked", count) as asked:
            keys = self._questions.keys
            places = {keys[number]: draw(self._settings.seed, "order", keys[number]) for number in chosen.tolist()}
            self._spread_rollouts(choice.decisions == SELECTED, places, rollouts)
            for table in self._context.inputs["questions"]:
                for row in table.rows(_ASKED):
                    if (place := places.get(row["question_key"])) is not None:
                        asked.add(asked.of(place), orjson.dumps(row))
            for index, lines in enumerate(rollouts):
                outcomes = _by_question(lines)
                questions = [orjson.loads(line) for line in asked.lines(index)]
                questions.sort(key=lambda row: (places[row["question_key"]], row["question_key"]))
                for question in questions:
                    row = self._row(question, outcomes[question["question_key"]], choice)
                    self._context.write(RL_ROWS.kind, [row])

    def _spread_rollouts(self, is_chosen: np.ndarray, places: Mapping[str, int], rollouts: Buckets) -> None:
        """Add a JSON line to `rollouts` for each chosen question of each batch: its key and a list for each rollout.

        A list has the key of the rollout, its score, its number of executed calls, and whether it is usable.
        """
        for batch in self._score_batches():
            wanted = pa.array(is_chosen[self._questions.of(batch)])
            taken = batch.select(_OUTCOME).filter(wanted).to_pydict()
            usable = [
                status != FAILED and score is not None
                for status, score in zip(taken["status"], taken["score"], strict=True)
            ]
            outcomes = zip(taken["rollout_key"], taken["score"], taken["calls_executed"], usable, strict=True)
            for key, group in itertools.groupby(
                zip(taken["question_key"], outcomes, strict=True), operator.itemgetter(0)
            ):
                line = orjson.dumps([key, [outcome for _, outcome in group]])
                rollouts.add(rollouts.of(places[key]), line)
            self._context.progress.advance(batch.num_rows)

    def _row(self, question: Mapping[str, Any], outcomes: Sequence[Sequence[Any]], choice: Choice) -> dict[str, Any]:
        key = question["question_key"]
        number = self._questions.numbers[key]
        usable = [outcome for outcome in outcomes if outcome[3]]
        score_tool = float(choice.dispersion.score_tool[number])
        score_corr = float(choice.dispersion.score_corr[number])
        placed = choice.place_facts(number)
        verl = verl_row(
            question,
            shown_messages(self._settings.environment_of(question), Task.from_row(question)),
            index=int(choice.place[number]),
            phase=self._settings.phase,
            score_tool=score_tool,
            score_corr=score_corr,
            rank=placed["rank"],
        )
        return {
            **verl,
            "question_key": key,
            "dataset": question["dataset"],
            "domain": question["domain"],
            "phase": self._settings.phase,
            "model": next(iter(self._models)),
            "parents": [outcome[0] for outcome in usable],
            "correctness": [outcome[1] for outcome in usable],
            "calls": [outcome[2] for outcome in usable],
            "num_unusable": len(outcomes) - len(usable),
            "score_tool": score_tool,
            "score_corr": score_corr,
            "method": choice.method.type,
            **placed,
            "environment_digest": self._environment_digests.of(question),
            "format": question["format"],
            "scorer": question["scorer"],
            "environment": question["environment"],
        }

    def _write_rejections(self, choice: Choice) -> None:
        for number in np.flatnonzero(choice.decisions != SELECTED).tolist():
            row = {"dataset": self._questions.datasets[number], **choice.facts(number)}
            self._context.write(RL_REJECTIONS.kind, [row])


def _spans(environments: Sequence[str], totals: Dispersion) -> np.ndarray | None:
    """Return for each question the width of its environment's range of rewards; the range includes [0, 1].

    Returns None if all questions have the same environment. Without these widths, an environment with large rewards
    would win over all others in the selection.
    """
    names = np.asarray(environments, dtype=np.str_)
    spans = np.ones(len(names))
    for name in set(environments):
        mask = names == name
        highest = np.fmax.reduce(totals.highest[mask], initial=1.0)
        spans[mask] = highest - np.fmin.reduce(totals.lowest[mask], initial=0.0)
    return spans if len(set(environments)) > 1 else None


def _by_question(lines: Sequence[bytes]) -> dict[str, list[list[Any]]]:
    """Return question key -> rollouts, joined from lines of several batches."""
    found: dict[str, list[list[Any]]] = {}
    for key, outcomes in map(orjson.loads, lines):
        found.setdefault(key, []).extend(outcomes)
    return found


def run_selection(context: StageContext) -> Mapping[str, Any]:
    """Select questions, write them and return the metrics.

    Raises StageFailed if no question is left or if the rollouts come from several models or another environment. Raises
    ArtifactError if rollouts, scores and questions do not match.
    """
    return _SelectionRun(context).run()
