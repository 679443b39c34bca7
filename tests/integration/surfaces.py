"""Clients of each surface that has tools: what they ask, and what they make of answers, whole and streamed."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
QUESTION, RESULT = "Is it wet in Köln?", "rain, 9 °C"
USER = {"role": "user", "content": QUESTION}


@dataclass
class Said:
    """An answer; `item` is what the client sends back of it."""

    text: str = ""
    thought: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    end: str = ""
    item: Any = None


class Surface(ABC):
    """A conversation over one of the surfaces. `ends` are its words for an answer with calls and for one without."""

    path: str
    ends: tuple[str, str]

    def __init__(self) -> None:
        self.turns: list[Any] = [USER]

    async def ask(self, client: httpx.AsyncClient, *, stream: bool) -> Said:
        """The next answer, which is then a part of the conversation."""
        answer = await client.post(self.path, json={**self.body(), "stream": stream}, timeout=60)
        assert answer.status_code == 200, answer.text
        said = self.read(self.joined(answer.text) if stream else answer.json())
        self.turns += said.item if isinstance(said.item, list) else [said.item]
        return said

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The request."""

    @abstractmethod
    def read(self, answer: Any) -> Said:
        """A whole answer."""

    @abstractmethod
    def joined(self, text: str) -> Any:
        """The whole answer that a stream makes."""

    @abstractmethod
    def give_result(self, said: Said) -> None:
        """Go on with the result of the call that was made."""


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


class Chat(Surface):
    path, ends = "/v1/chat/completions", ("tool_calls", "stop")

    def body(self) -> dict[str, Any]:
        return {"messages": self.turns, "tools": [{"type": "function", "function": FUNCTION}], "temperature": 0}

    def read(self, answer: Any) -> Said:
        [choice] = answer["choices"]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        return Said(
            message["content"] or "",
            message.get("reasoning_content") or "",
            [(call["name"], json.loads(call["arguments"])) for call in calls],
            choice["finish_reason"],
            message,
        )

    def joined(self, text: str) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
        reason = None
        for event in _events(text):
            [choice] = event["choices"]
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append(call | {"function": call["function"] | {"arguments": ""}})
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        return {"choices": [{"message": message, "finish_reason": reason}]}

    def give_result(self, said: Said) -> None:
        [call] = said.item["tool_calls"]
        self.turns.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT})


class Messages(Surface):
    path, ends = "/v1/messages", ("tool_use", "end_turn")

    def body(self) -> dict[str, Any]:
        tool = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": PARAMETERS}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        return {"messages": self.turns, "tools": [tool], "thinking": thinking, "max_tokens": 1000, "temperature": 0}

    def read(self, answer: Any) -> Said:
        said = Said(end=answer["stop_reason"], item={"role": "assistant", "content": answer["content"]})
        for block in answer["content"]:
            match block["type"]:
                case "text":
                    said.text += block["text"]
                case "thinking":
                    said.thought += block["thinking"]
                case "tool_use":
                    said.calls.append((block["name"], block["input"]))
        return said

    def joined(self, text: str) -> Any:
        message: dict[str, Any] = {}
        for event in _events(text):
            match event["type"]:
                case "message_start":
                    message = event["message"]
                case "content_block_start":
                    message["content"].append(event["content_block"])
                case "content_block_delta":
                    block, delta = message["content"][event["index"]], event["delta"]
                    kind = delta["type"].removesuffix("_delta")
                    if kind == "input_json":
                        block["json"] = block.get("json", "") + delta["partial_json"]
                    else:
                        block[kind] += delta[kind]
                case "message_delta":
                    message |= event["delta"]
        for block in message["content"]:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block.pop("json"))
        return message

    def give_result(self, said: Said) -> None:
        [use] = [block for block in said.item["content"] if block["type"] == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": RESULT}
        self.turns.append({"role": "user", "content": [result]})


class Responses(Surface):
    path, ends = "/v1/responses", ("completed", "completed")

    def body(self) -> dict[str, Any]:
        return {"input": self.turns, "tools": [{"type": "function", **FUNCTION}], "temperature": 0}

    def read(self, answer: Any) -> Said:
        said = Said(end=answer["status"], item=answer["output"])
        for item in answer["output"]:
            match item["type"]:
                case "message":
                    said.text += item["content"][0]["text"]
                case "reasoning":
                    said.thought += item["content"][0]["text"]
                case "function_call":
                    said.calls.append((item["name"], json.loads(item["arguments"])))
        return said

    def joined(self, text: str) -> Any:
        *_, last = _events(text)
        return last["response"]

    def give_result(self, said: Said) -> None:
        [call] = [item for item in said.item if item["type"] == "function_call"]
        self.turns.append({"type": "function_call_output", "call_id": call["call_id"], "output": RESULT})


class Ollama(Surface):
    path, ends = "/api/chat", ("stop", "stop")

    def body(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": FUNCTION}]
        return {"model": "fake", "messages": self.turns, "tools": tools, "options": {"temperature": 0}}

    def read(self, answer: Any) -> Said:
        message = answer["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        made = [(call["name"], call["arguments"]) for call in calls]
        return Said(message["content"], message.get("thinking", ""), made, answer["done_reason"], message)

    def joined(self, text: str) -> Any:
        lines = [json.loads(line) for line in text.splitlines()]
        messages = [line["message"] for line in lines]
        message: dict[str, Any] = {"role": "assistant"}
        for name in ("content", "thinking"):
            message[name] = "".join(each.get(name, "") for each in messages)
        message["tool_calls"] = [call for each in messages for call in each.get("tool_calls", ())]
        return lines[-1] | {"message": message}

    def give_result(self, said: Said) -> None:
        self.turns.append({"role": "tool", "content": RESULT, "tool_name": said.calls[0][0]})


SURFACES: tuple[type[Surface], ...] = (Chat, Messages, Responses, Ollama)
