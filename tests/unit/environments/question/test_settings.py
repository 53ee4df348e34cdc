from __future__ import annotations

import pytest

from treadle.agent.contract import Task
from treadle.agent.prompts import FORMATS
from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.environments.question.settings import QuestionSettings


def settings(**keys: object) -> QuestionSettings:
    return load_config(QuestionSettings, data=keys)


@pytest.mark.parametrize(
    ("keys", "markers"),
    [
        ({}, {"<search>", "<python>", "<result>", "<think>", "<answer>"}),
        ({"python": {"enabled": False}}, {"<search>", "<result>", "<think>", "<answer>"}),
        ({"search": {"max_calls": 0}}, {"<python>", "<result>", "<think>", "<answer>"}),
        ({"prompt": "none"}, {"<think>", "<answer>"}),
    ],
)
def test_prompt_describes_only_the_enabled_tools(keys: dict[str, object], markers: set[str]) -> None:
    text = settings(**keys).system_text
    every = {"<search>", "<python>", "<result>", "<think>", "<answer>"}
    assert {marker for marker in every if marker in text} == markers
    assert "\\boxed{" in text and "{{" not in text


@pytest.mark.covers("evaluation-29")
def test_question_format_determines_the_end_of_the_system_message() -> None:
    given = settings()
    asked = {}
    for form in (None, *FORMATS):
        system, user = given.first_messages(Task("k", "Who?", format=form))
        assert system["content"].startswith(given.system_text) and user["content"] == "Who?"
        asked[form] = system["content"].removeprefix(given.system_text)
    assert asked[None] == asked["multiple_choice"] == ""
    assert "true or false" in asked["assertion"] and "gap" in asked["fill_in"] and "brief" in asked["open_ended"]
    assert len(set(asked.values())) == 4 and all(text.startswith("\n\n") for text in asked.values() if text)


@pytest.mark.parametrize(
    ("keys", "form", "expected"),
    [
        ({"system_prompt": "Be brief."}, "assertion", "Be brief."),
        (
            {"system_prompt": "Be brief.", "format_prompts": {"assertion": "Yes or no?"}},
            "assertion",
            "Be brief.\n\nYes or no?",
        ),
        ({"system_prompt": "Be brief.", "format_prompts": {"assertion": "Yes or no?"}}, "fill_in", "Be brief."),
        ({"system_prompt": "", "format_prompts": {"fill_in": "Fill it."}}, "fill_in", "Fill it."),
        ({"system_prompt": "Be brief.", "format_prompts": {"multiple_choice": "A letter."}}, "essay", "Be brief."),
    ],
)
def test_custom_prompt_ends_as_configured(keys: dict[str, object], form: str, expected: str) -> None:
    assert settings(**keys).system_text_of(form) == expected


def test_empty_text_removes_the_shipped_ending() -> None:
    given = settings(format_prompts={"open_ended": ""})
    assert given.system_text_of("open_ended") == given.system_text == settings().system_text
    assert given.system_text_of("assertion") == settings().system_text_of("assertion")
    with pytest.raises(
        ConfigError, match=r"'format_prompts.open.*': .*'multiple_choice', 'assertion', 'fill_in' or 'open_ended'"
    ):
        settings(format_prompts={"open": ""})


def test_question_digest_uses_its_format_if_the_prompt_differs() -> None:
    plain = settings()
    digests = plain.digests()
    assert digests.plain == plain.digest() == digests.by_format["multiple_choice"] == digests.of({"format": None})
    assert len({digests.plain, *digests.by_format.values()}) == 4
    assert digests.of({"format": "assertion"}) == plain.digest("assertion") != digests.plain
    assert digests.of({}) == digests.plain and plain.digest("fill_in") in digests and "0" not in digests
    own = settings(system_prompt="Be brief.").digests()
    assert set(own.by_format.values()) == {own.plain}
    assert settings(format_prompts={"assertion": "Yes or no?"}).digest() != plain.digest()


def test_limits_follow_the_settings() -> None:
    assert settings().turn_limit() == 16
    assert settings().turn_limit(additional=4) == 24
    assert settings(max_turns=5).turn_limit() == 5
    assert settings(search={"enabled": False}).turn_limit() == 10


def test_keys_given_with_a_preset_override_it() -> None:
    preset = settings(preset="et-agent-rl", python={"max_calls": 3})
    assert (preset.on_limit, preset.max_total_calls, preset.result_format) == ("silent", 6, "spaced")
    assert (preset.python.time_limit_s, preset.python.max_output_chars, preset.python.max_calls) == (120.0, None, 3)
    assert settings(**preset.model_dump(mode="json")) == preset
    with pytest.raises(ConfigError, match="known presets: et-agent-rl"):
        settings(preset="et")


def test_digest_depends_only_on_what_the_agent_sees() -> None:
    base = settings().digest()
    assert settings(search={"num_threads": 7}).digest() == base
    assert settings(system_prompt="Be brief.").digest() != base
    assert settings(python={"time_limit_s": 5}).digest() != base
    assert settings(search={"corpus_sha256": ["0"]}).digest() != base
