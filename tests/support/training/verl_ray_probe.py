"""Run by the Python of the engine environment `verl`: Ray, TransferQueue and verl's own workers, with a stub server.

`ANSWER.json FOLDER`: `FOLDER` is that of `support.training.verl_e2e`. What verl's trainer does for a step's rollouts is
done here: rows of verl's data set go to `AgentLoopManagerTQ`, trajectories come back through TransferQueue. The
environment is a real one, opened inside the worker: programs run in the sandbox.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from treadle.core.chat import ChatTokenizer
from treadle.core.llm.types import Completion, CompletionRequest

CALL = "<think>I compute.</think><python>print(6 * 2)</python>"
ANSWER = "<think>Done.</think><answer>\\boxed{12}</answer>"
DEADLINE_S = 300.0


class ComputesOrGuesses:
    """Half of the trajectories compute first; those of question 1 get a broken server."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._codec: ChatTokenizer | None = None

    def __call__(self, request: CompletionRequest) -> Completion:
        """One answer."""
        self._codec = codec = self._codec or ChatTokenizer.load(Path(self._model))
        assert isinstance(request.prompt, list)
        context = codec.decode(request.prompt)
        if "Question 1?" in context:
            raise RuntimeError("this server is broken")
        computed = "<result>" in context
        if computed and "<result>12" not in context:
            raise RuntimeError(f"the program printed something else: {context[-200:]}")
        text = CALL if not computed and request.seed % 2 else ANSWER
        ids = codec.encode(text)
        logprobs = (-0.25,) * len(ids)
        return Completion(text, tuple(ids), "stop", None, len(request.prompt), len(ids), "stub", 0.0, 0, logprobs)


def main(answer: str, folder: str) -> None:
    """Start Ray, roll out the rows that fit, look at what the trainer would train on."""
    import ray
    import transfer_queue as tq
    from support.training.stub_verl import StubClient
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
    from verl.workers.rollout.replica import TokenOutput

    from treadle.rl.engine.verl.compose import compose_config

    root = Path(folder)
    lines = json.loads((root / "overrides.json").read_text())["job"]
    config = compose_config(
        [
            *lines,
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "transfer_queue.enable=true",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        ]
    )
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=get_ppo_ray_runtime_env(config), log_to_driver=True)
    try:
        tq.init(config.transfer_queue)
        client = StubClient(ComputesOrGuesses(str(root / "start")), TokenOutput)
        manager = AgentLoopManagerTQ.create(config, client)
        batch, uids = _batch(config, root)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)
        manager.generate_sequences(batch)
        status = _wait(tq, uids)
        found = {"status": [status[uid] for uid in uids], "groups": _groups(tq, uids)}
        Path(answer).write_text(json.dumps(found))
    finally:
        ray.shutdown()


def _batch(config: Any, root: Path) -> tuple[Any, list[str]]:
    """Return the rows as verl's trainer hands them to its agent loops."""
    import numpy as np
    from verl.utils import hf_tokenizer
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    dataset = RLHFDataset(config.data.train_files, hf_tokenizer(str(root / "start")), config.data)
    rows = collate_fn([dataset[at] for at in range(len(dataset))])
    uids = [f"uid{at}" for at in range(len(dataset))]
    rows["uid"] = np.array(uids, dtype=object)
    batch = tu.get_tensordict(rows)
    tu.assign_non_tensor_data(batch, "global_steps", 1)
    return batch, uids


def _wait(tq: Any, uids: list[str]) -> dict[str, str]:
    """Return how each group ended."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        tags = tq.kv_list("train").get("train", {})
        status = {uid: tags[uid]["status"] for uid in uids if uid in tags}
        if len(status) == len(uids) and set(status.values()) <= {"finished", "failure"}:
            return status
        time.sleep(0.2)
    raise TimeoutError(f"groups are still at {status}")


def _groups(tq: Any, uids: list[str]) -> list[list[dict[str, Any]]]:
    """Per question the trajectories that the trainer would find, by sessions."""
    tags = tq.kv_list("train").get("train", {})
    fields = ["responses", "response_mask", "rm_scores", "rollout_log_probs", "extra_fields", "num_turns"]
    groups = []
    for uid in uids:
        keys = sorted(key for key in tags if key.startswith(f"{uid}_"))
        if not keys:
            groups.append([])
            continue
        data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
        extra, turns = list(data["extra_fields"]), list(data["num_turns"])
        groups.append(
            [
                {
                    "ids": data["responses"][at].tolist(),
                    "mask": data["response_mask"][at].tolist(),
                    "scores": data["rm_scores"][at].tolist(),
                    "logprobs": data["rollout_log_probs"][at].tolist(),
                    "columns": extra[at]["reward_extra_info"],
                    "num_turns": int(turns[at]),
                    "versions": [tags[keys[at]]["min_global_steps"], tags[keys[at]]["max_global_steps"]],
                }
                for at in range(len(keys))
            ]
        )
    return groups


if __name__ == "__main__":
    main(*sys.argv[1:3])
