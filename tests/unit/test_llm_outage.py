"""What the log says of outages, event by event."""

from __future__ import annotations

import asyncio
import random

import pytest

from treadle.core.llm.config import EndpointSettings, ModelSettings
from treadle.core.llm.endpoint import Endpoint
from treadle.core.llm.outage import Outages


async def test_an_answer_to_what_was_sent_before_does_not_end_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    never = asyncio.Event()

    async def ask(endpoint: Endpoint) -> int:
        await never.wait()
        return 200

    endpoint = Endpoint(EndpointSettings(url="http://127.0.0.1:9/v1"), 8)
    endpoint.in_flight = 1
    outages = Outages("policy", ModelSettings(model="m"), [endpoint], ask, random.Random(0))
    before = asyncio.get_running_loop().time() - 1.0
    outages.note_fault(endpoint, "refused", at_once=True)
    outages.note_success(endpoint, before)
    assert [message for message in caplog.messages if "answers again" in message] == []
    outages.note_success(endpoint, asyncio.get_running_loop().time())
    assert len([message for message in caplog.messages if "answers again" in message]) == 1
    await outages.close()
