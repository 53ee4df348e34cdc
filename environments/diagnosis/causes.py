"""Hold the problems of rollouts and their likely causes, each with the condition under which it is reported."""

from __future__ import annotations

from treadle.environments.diagnosis.facts import Facts
from treadle.environments.diagnosis.problem import FEW, Cause, Problem, ProblemTable


def _counted(facts: Facts) -> str:
    without = "" if facts.num_calls or not facts.tools else ", and none called a tool"
    return f"{facts.num - facts.num_ended:,} of {facts.num:,} rollouts did not end with an answer{without}"


_PROBLEMS: tuple[Problem[Facts], ...] = (
    Problem("no_answer", lambda f: f.num > 0 and 2 * f.num_ended < f.num, _counted),
    Problem(
        "no_calls",
        lambda f: bool(f.tools) and f.num >= FEW and not f.num_calls and 2 * f.num_ended >= f.num,
        lambda f: f"none of {f.num:,} rollouts called a tool ({', '.join(f.tools)})",
    ),
    Problem(
        "failed_calls",
        lambda f: f.num_executed >= FEW and f.num_failed_calls == f.num_executed,
        lambda f: f"all {f.num_executed:,} tool calls failed",
    ),
    Problem(
        "failed_tool",
        lambda f: bool(f.failed_tools) and f.num_failed_calls < f.num_executed,
        lambda f: "; ".join(f"all {count:,} calls of {tool} failed" for tool, count in f.failed_tools.items()),
    ),
    Problem(
        "refused_calls",
        lambda f: f.num_calls >= FEW and not f.num_executed,
        lambda f: f"all {f.num_calls:,} tool calls were refused, so none ran",
    ),
    Problem(
        "truncated",
        lambda f: f.num >= FEW and f.num_truncated == f.num and 2 * f.num_ended >= f.num,
        lambda f: f"all {f.num:,} rollouts were cut before their task ended",
    ),
    Problem(
        "equal_rollouts",
        lambda f: f.num_groups >= FEW and f.num_equal_groups == f.num_groups,
        lambda f: f"the rollouts of each of {f.num_groups:,} questions are equal",
    ),
)
_OPEN = ("no_answer",)


def _tagless(facts: Facts) -> bool:
    """Return whether the dialect is `tags`, but less than a third of the texts read have an answer tag."""
    return facts.dialect == "tags" and not facts.often("answer_tag")


_CAUSES: tuple[Cause[Facts], ...] = (
    Cause(
        _OPEN,
        lambda f: f.mostly("length") and f.often("open_thought"),
        lambda f: f"Reasoning used up rollouts.sampling.max_tokens{_limit(f)}: raise it, or turn thinking off.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("length") and not f.often("open_thought"),
        lambda f: f"Turns were cut at rollouts.sampling.max_tokens{_limit(f)}: raise it (--max-tokens).",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("no_answer", "length", "max_turns") and f.often("empty"),
        lambda _: (
            "The model wrote nothing: its chat template may be another model's, or hidden reasoning used up "
            "rollouts.sampling.max_tokens."
        ),
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("no_answer") and f.often("only_thought"),
        lambda f: (
            f"No text follows the reasoning: raise rollouts.sampling.max_tokens{_limit(f)}, or ask for less reasoning "
            "(extra_body of the model)."
        ),
    ),
    Cause(
        (*_OPEN, "no_calls"),
        lambda f: f.dialect == "tags" and f.often("native_call"),
        lambda _: 'The model writes calls in its own form: set environment.dialect = "functions".',
    ),
    Cause(
        (*_OPEN, "no_calls"),
        lambda f: f.dialect == "functions" and f.often("native_call"),
        lambda _: (
            "Calls stand unread in the text: start the server with its tool parser (vLLM: --enable-auto-tool-choice "
            "--tool-call-parser), or use the model's own template with --tokenizer."
        ),
    ),
    Cause(
        _OPEN,
        lambda f: _tagless(f) and f.often("boxed"),
        lambda _: (
            r"Answers stand in \boxed{} without <answer> tags, which the model does not know: set "
            'environment.dialect = "functions", or show the tags in environment.system_prompt.'
        ),
    ),
    Cause(
        _OPEN,
        lambda f: _tagless(f) and f.often("other_tags"),
        lambda _: "The model writes other tags than <answer>: name the tags again in environment.system_prompt.",
    ),
    Cause(
        _OPEN,
        lambda f: _tagless(f) and f.often("code_fence") and not f.num_calls,
        lambda _: (
            'Programs stand in ``` fences, not in <python> tags: set environment.dialect = "functions", or show the '
            "tags in environment.system_prompt."
        ),
    ),
    Cause(
        _OPEN,
        lambda f: f.dialect == "tags" and f.often("answer_opened") and f.mostly("no_answer"),
        lambda _: "Answers are opened but not closed: the server may strip stop strings; see `treadle doctor`.",
    ),
    Cause(
        (*_OPEN, "no_calls"),
        lambda f: f.is_chatml,
        lambda _: (
            "Prompts are ChatML, since the model has no tokenizer here: if its template differs, give its folder with "
            "--tokenizer, or use --chat."
        ),
    ),
    Cause(
        _OPEN,
        lambda f: f.often("other_template"),
        lambda _: "Markers of a chat template stand in the text: the template may be another model's (--tokenizer).",
    ),
    Cause(
        (*_OPEN, "failed_calls", "failed_tool"),
        lambda f: bool(f.unknown_tools),
        lambda f: f"Calls name tools that do not exist ({', '.join(f.unknown_tools[:3])}); there are {_tools(f)}.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("max_turns"),
        lambda _: "Rollouts used all turns: raise environment.max_turns.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("limit"),
        lambda _: "Rollouts ran into the limit of calls: raise max_calls of the tools or environment.max_total_calls.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("context_full"),
        lambda _: "The model's window is full: serve it with a larger one, or shorten tool results.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("budget"),
        lambda _: "Rollouts used up environment.max_trajectory_tokens: raise it.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("timeout"),
        lambda _: "Rollouts ran out of time: raise environment.rollout_time_s, or use more servers.",
    ),
    Cause(
        _OPEN,
        lambda f: f.mostly("filtered"),
        lambda _: "The service's content filter ended the turns: check the questions, or use another service.",
    ),
    Cause(
        ("no_calls",),
        lambda f: not f.is_chatml and not f.often("native_call"),
        lambda f: (
            "The server may not read calls (vLLM: --enable-auto-tool-choice and --tool-call-parser), or the model sees "
            "no need of tools."
            if f.dialect == "functions"
            else "The model may not know the tags of the tools, or sees no need of tools."
        ),
    ),
    Cause(
        ("failed_calls", "failed_tool"),
        lambda f: bool(f.common_error),
        lambda f: f'Nearly every failed call says "{f.common_error}".',
    ),
    Cause(
        ("failed_calls", "failed_tool"),
        lambda f: not f.unknown_tools,
        lambda _: "A tool may be set up wrongly: run `treadle doctor`, and read a result with `treadle show`.",
    ),
    Cause(
        ("refused_calls",),
        lambda _: True,
        lambda _: "Limits of calls may be too low: max_calls of the tools, environment.max_total_calls.",
    ),
    Cause(
        ("equal_rollouts",),
        lambda f: f.temperature == 0,
        lambda _: "rollouts.sampling.temperature = 0 makes them equal: raise it, or ask for one sample per question.",
    ),
    Cause(
        ("equal_rollouts",),
        lambda f: f.temperature != 0,
        lambda _: (
            "The server may ignore temperature and seed, or answer from a cache; or the model is sure of every word."
        ),
    ),
    Cause(
        ("truncated",),
        lambda _: True,
        lambda _: (
            "Limits of turns, tokens or time may be too low: environment.max_turns, rollouts.sampling.max_tokens."
        ),
    ),
)

ROLLOUT_PROBLEMS = ProblemTable(_PROBLEMS, _CAUSES)
"""Problems of rollouts, and their likely causes."""


def _limit(facts: Facts) -> str:
    return "" if facts.max_tokens is None else f" = {facts.max_tokens:,}"


def _tools(facts: Facts) -> str:
    return ", ".join(facts.tools) or "no tools"
