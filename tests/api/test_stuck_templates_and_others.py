import asyncio
import os
import signal
from dataclasses import replace

import httpx
import pytest
from numaserve.server.tokenizer.chat_template import ChatTemplate
from shared_apps import app_over

from tests.support.api_fakes import MODEL, FakeEngine, make_context, outcomes
from tests.support.byte_tokenizer import ByteTokenizer

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class TemplateTokenizer(ByteTokenizer):
    """With a process that renders."""

    def __init__(self) -> None:
        self.template = ChatTemplate("{{ messages[0]['content'] }}", seconds=60.0)
        super().__init__(render=lambda messages, *_, **_options: self.template.render({"messages": messages}))

    def close(self) -> None:
        self.template.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_texts_are_served_while_a_template_is_stuck_and_then_conversations_again(engine: FakeEngine, path: str) -> None:
    tokenizer = TemplateTokenizer()
    context = replace(make_context(engine), tokenizer=tokenizer)

    async def scenario() -> None:
        transport = httpx.ASGITransport(app_over(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post(path, json=CHAT)).status_code == 200
            os.kill(tokenizer.template._worker._process.pid, signal.SIGSTOP)
            stuck = [asyncio.create_task(client.post(path, json=CHAT)) for _ in range(2)]
            await asyncio.sleep(0.05)
            for other, body in (
                ("/tokenize", {"prompt": "x" * 9000}),
                ("/detokenize", {"tokens": [65]}),
                ("/v1/completions", {"prompt": "hi"}),
            ):
                assert (await client.post(other, json=body)).status_code == 200
            assert not any(request.done() for request in stuck)
            os.kill(tokenizer.template._worker._process.pid, signal.SIGCONT)
            assert [answer.status_code for answer in await asyncio.gather(*stuck)] == [200, 200]

            os.kill(tokenizer.template._worker._process.pid, signal.SIGSTOP)
            tokenizer.template._worker._seconds = 0.2
            answer = await client.post(path, json=CHAT)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "chat_template_unavailable")
            assert outcomes(context, "not_ready") == 1
            tokenizer.template._worker._seconds = 60.0
            assert (await client.post(path, json=CHAT)).status_code == 200

    try:
        asyncio.run(scenario())
    finally:
        context.close()
    assert tokenizer.template._worker._process.is_stopped
