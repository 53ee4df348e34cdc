"""Groups of rollouts without a model: scripted generators, stub tools, a tokenizer of words.

What is called `CONTRACT` or `contract` is the scenario that every training engine's adapter must play alike, with the
byte tokenizer; its expected results are in tests/unit/golden/group_rollouts.json. Nothing here needs pytest, so that
engines' environments can use it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.training.rewards import group_rewards

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.model_types import ChatCodec, CompletionModel
from treadle.agent.tools.outcome import CallContext, OutcomeStatus, Tool, ToolOutcome
from treadle.core.config import load_config
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.environments.question.runtime import QuestionRuntime
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.credit.outcome import group_advantages
from treadle.rl.environment import OpenEnvironment
from treadle.rl.groups.batching import BatchMembership
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.group import Group, GroupJob
from treadle.rl.groups.rollout import GroupRollouts

SEARCH = "<think>look</think><search>q</search>"
ANSWER = "<think>done</think><answer>\\boxed{1}</answer>"
QUESTION = Task("k", "Where?")
ALONE = Branching(10**6)
"""No branching."""


class WordCodec:
    """A tokenizer whose tokens are markers and the text between them; id 0 ends a turn.

    `word</result>` and `word</answer>` are one token each, so that a test can count tokens by hand.
    """

    eos_ids = frozenset({0})
    added_tokens: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._words = ["<|im_end|>"]
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; the end of a turn is not among them."""
        words = re.findall(r"\w+</(?:result|answer)>|</?\w+>|[^<]+|<", text)
        for word in words:
            if word not in self._ids:
                self._ids[word] = len(self._words)
                self._words.append(word)
        return [self._ids[word] for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return "".join(self._words[index] for index in ids)

    def count_within(self, ids: Sequence[int], text: str) -> int:
        """See `treadle.agent.token_ids.Codec`."""
        return max(number for number in range(len(ids) + 1) if text.startswith(self.decode(ids[:number])))

    def counts_before(self, ids: Sequence[int], text: str, positions: Sequence[int]) -> list[int]:
        """See `treadle.agent.token_ids.Codec`."""
        lengths = list(itertools.accumulate((len(self._words[index]) for index in ids), initial=0))
        return [next(number for number, length in enumerate(lengths) if length >= at) for at in positions]

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Contents, one per line."""
        return "".join(message["content"] + "\n" for message in messages)

    def prompt_ids(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Their ids."""
        return self.encode(self.render(messages))

    def reply_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """See `treadle.agent.model_types.Renderer`: the end of the turn, and the messages."""
        return self._words[0] + self.render(messages)

    def reply_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], int]:
        """See `treadle.agent.token_ids.Codec`: the ids of `reply_text`."""
        return [0, *self.prompt_ids(messages)], 1


class StubTool:
    """Answers from the argument alone."""

    def __init__(self, name: str, text: str = "found", status: OutcomeStatus = "ok") -> None:
        self.name = name
        self.arguments: list[str] = []
        self._text = text
        self._status = status

    async def __aenter__(self) -> StubTool:
        """Nothing to open."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Return the text, with the argument in its placeholder."""
        self.arguments.append(argument)
        return ToolOutcome(self._status, self._text.format(argument))


class ScriptedGenerator:
    """Completes a batch by a function of each request's context (text) and seed.

    The reply is text; `(text, "length")` if it was truncated; an end-of-turn id follows a reply that calls nothing.
    Log-probabilities are -1, -2, ... within a turn; entropies, if given, are also a function of the context.
    """

    def __init__(
        self,
        codec: ChatCodec,
        reply: Callable[[str, int], str | tuple[str, str]],
        entropy: Callable[[str, int], float] | None = None,
        overrun: str = "",
    ) -> None:
        self.requests: list[CompletionRequest] = []
        self._codec = codec
        self._reply = reply
        self._entropy = entropy
        self._overrun = overrun

    def __call__(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Answers in the order of the requests."""
        self.requests += requests
        return [self._complete(request) for request in requests]

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        """Return the same as a model that does not wait for others."""
        return self([request])[0]

    def _complete(self, request: CompletionRequest) -> Completion:
        context = self._codec.decode(request.prompt)  # type: ignore[arg-type]
        reply = self._reply(context, request.seed)
        text, finish = (reply, "stop") if isinstance(reply, str) else reply
        ids = self._codec.encode(text + self._overrun)
        if finish == "stop" and not text.endswith(request.stop):
            ids.append(min(self._codec.eos_ids))
        ids = ids[: request.max_tokens]
        logprobs = tuple(-1.0 - index for index in range(len(ids)))
        entropies = None if self._entropy is None else (self._entropy(context, request.seed),) * len(ids)
        return Completion(
            text, tuple(ids), finish, None, len(request.prompt), len(ids), "script", 0.0, 0, logprobs, entropies
        )


def make_rollouts(
    model: CompletionModel,
    codec: ChatCodec,
    *,
    branching: Branching,
    membership: BatchMembership | None = None,
    environment: QuestionSettings | None = None,
    tools: Sequence[StubTool] = (),
    max_response_tokens: int | None = None,
    max_tokens: int = 4096,
) -> GroupRollouts:
    """Group rollouts with stub tools; entropies are in nats (a vocabulary of e words)."""
    settings = environment or QuestionSettings()
    given: dict[str, Any] = {"search": StubTool("search"), "python": StubTool("python")}
    opened = OpenEnvironment(settings, QuestionRuntime(settings, given | {tool.name: tool for tool in tools}))
    engine = opened.engine(model, codec, Sampling(max_tokens=max_tokens), max_response_tokens=max_response_tokens)
    return opened.groups(engine, branching, vocab_size=10, membership=membership)


def job(size: int, seed: int = 1, group_id: str = "g") -> GroupJob:
    """Return a group of the one question."""
    return GroupJob(group_id, QUESTION, size, seed)


CONTRACT_ENVIRONMENT = QuestionSettings(system_prompt="Use tools.", max_total_calls=3, on_limit="stop")
CONTRACT_BRANCHING = Branching(4, 2, 0.5, 0.2)
CONTRACT_VOCABULARY = 259
CONTRACT_GOLD = ["12"]
CONTRACT_DOMAIN = "math"
CONTRACT_SIGMAS = (0.1, 0.1)
CONTRACT_JOBS = [
    GroupJob(f"group-{index}", Task(f"key-{index}", f"Question {index}?", domain="math"), 8, derive_seed(7, index))
    for index in range(3)
]
_CONTRACT_REPLIES: tuple[str | tuple[str, str], ...] = (
    "<think>I look it up.</think><search>the number</search>",
    "<think>I compute.</think><python>print(6 * 2)</python>",
    "<think>Clear.</think><answer>\\boxed{12}</answer>",
    "<think>I guess.</think><answer>\\boxed{13}</answer>",
    "<think>I do not know.</think>",
    "<answer>\\boxed{12}</answer>",
    ("<think>On and on", "length"),
)


def contract_tools() -> dict[str, Tool]:
    """Return a search that finds, an end of turn spelled in what it finds; a Python that fails."""
    return {"search": StubTool("search", "<|im_end|> {}: 12"), "python": StubTool("python", "no", "error")}


def contract_generator(codec: ChatCodec) -> ScriptedGenerator:
    """Half of the first turns call a tool, a third of the later ones; all by the turn's seed."""

    def reply(context: str, seed: int) -> str | tuple[str, str]:
        num_results = context.rpartition("<|im_start|>assistant")[2].count("<result>")
        if num_results == 0 and seed % 2:
            return _CONTRACT_REPLIES[seed // 2 % 2]
        return _CONTRACT_REPLIES[seed // 2 % len(_CONTRACT_REPLIES)]

    return ScriptedGenerator(codec, reply, entropy=lambda _, seed: seed % 5 / 2)


def contract_rollouts(
    model: CompletionModel, codec: ChatCodec, membership: BatchMembership | None = None
) -> GroupRollouts:
    """Return the scenario's group rollouts over a model, by default one that answers immediately."""
    opened = OpenEnvironment(CONTRACT_ENVIRONMENT, QuestionRuntime(CONTRACT_ENVIRONMENT, contract_tools()))
    engine = opened.engine(model, codec, Sampling(top_p=1.0, max_tokens=256), max_response_tokens=512)
    return opened.groups(engine, CONTRACT_BRANCHING, vocab_size=CONTRACT_VOCABULARY, membership=membership)


def contract_facts(groups: Sequence[Group], codec: ChatCodec) -> list[dict[str, Any]]:
    """Return the expected facts of any engine: trajectories, masks, rewards, advantages (epsilon 1e-6), as JSON."""
    return [_contract_group(group, codec) for group in groups]


def _contract_group(group: Group, codec: ChatCodec) -> dict[str, Any]:
    rewards = group_rewards(group.items, CONTRACT_GOLD, CONTRACT_DOMAIN, *CONTRACT_SIGMAS, dialect=TOOL_DIALECT)
    advantages = group_advantages([reward.reward for reward in rewards])
    trajectories = [
        {
            "session": made.session,
            "completion": codec.decode(made.completion_ids),
            "mask": runs_of(made.env_mask),
            "logprobs": round(sum(made.logprobs), 6),
            "finish": item.status,
            "tool_calls": item.tool_calls,
            "tool_failures": item.tool_failures,
            "model_tokens": item.model_tokens,
            "total_tokens": item.total_tokens,
            "branch_parent": made.branch_parent,
            "branch_depth": made.branch_depth,
            "reward": round(reward.reward, 6),
            "advantage": round(advantage, 6),
        }
        for made, item, reward, advantage in zip(group.trajectories, group.items, rewards, advantages, strict=True)
    ]
    prompt = codec.decode(group.trajectories[0].prompt_ids)
    return {"group_id": group.group_id, "n": len(trajectories), "prompt": prompt, "items": trajectories}


def runs_of(values: Sequence[int]) -> list[list[int]]:
    """Run lengths: `[1, 1, 0]` becomes `[[1, 2], [0, 1]]`."""
    return [[value, len(list(group))] for value, group in itertools.groupby(values)]


def settings(**keys: object) -> QuestionSettings:
    return load_config(QuestionSettings, data=keys)


def turn_of(context: str) -> str:
    """Return the assistant's turn; the system message speaks of the same tags."""
    return context.rpartition(QUESTION.text)[2]


def num_results(context: str) -> int:
    return turn_of(context).count("<result>")


def rounds_of_tools(number: int) -> Callable[[str, int], str]:
    return lambda context, _: SEARCH if num_results(context) < number else ANSWER
