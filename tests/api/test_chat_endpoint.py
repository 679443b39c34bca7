from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries
from numaserve.workers.interface.protocol import TokenLogprobs
from whole_answers import TestClient

from tests.support.api_fakes import MODEL

USER = [{"role": "user", "content": "hi"}]


def chat(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, **fields})


def test_the_logprobs_of_a_long_answer_are_not_left_to_its_end(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def entries(names: TokenNames, tokens: Sequence[TokenLogprobs]) -> list[msgspec.Raw]:
        written.append(len(tokens))
        return chat_entries(names, tokens)

    monkeypatch.setattr("numaserve.server.surfaces.openai.chats.chat_answer.chat_entries", entries)
    answer = chat(client, logprobs=True, top_logprobs=2).json()
    assert len(answer["choices"][0]["logprobs"]["content"]) == sum(written)
    assert max(written) == 1
