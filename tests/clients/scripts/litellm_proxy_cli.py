"""The litellm proxy before a server that it knows as vLLM, as Anthropic and as Ollama, asked in its clients' ways."""

import atexit
import json
import os
import secrets
import sys
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException

import anthropic
import openai
from agent_checks import ENDLESS, SAID, SMALL_URL, forced, running, until
from checks import BIN, MODEL, SCRATCH, URL, check, expect, user
from libraries import LONG, City, read
from processes import free_port
from processes import running as process_of

BASES = {"hosted_vllm": "/v1", "anthropic": "", "ollama": "", "ollama_chat": ""}
CHOOSING = ("hosted_vllm", "anthropic")  # nothing chooses a tool at Ollama
HELLO = [user("Hello")]
PONDER = [user("Please ponder this")]
PORT = free_port()
KEY = f"sk-{secrets.token_hex(24)}"  # it does not start without one
PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}]

chat = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key=KEY, max_retries=0, timeout=240)
messages = anthropic.Anthropic(base_url=f"http://127.0.0.1:{PORT}", api_key=KEY, max_retries=0, timeout=240)


def deployment(name: str, provider: str, url: str = URL, model: str = MODEL) -> dict[str, object]:
    served = {"model": f"{provider}/{model}", "api_base": url + BASES[provider], "api_key": "none"}
    return {"model_name": name, "litellm_params": served}


def configuration() -> dict[str, object]:
    deployments = [deployment(each, each) for each in BASES]
    deployments += [deployment(f"small-{each}", each, url=SMALL_URL) for each in BASES]
    deployments += [deployment(f"other-{each}", each, model="other") for each in BASES]
    return {"model_list": deployments}


def ready() -> bool:
    connection = HTTPConnection(f"127.0.0.1:{PORT}")
    with suppress(OSError, HTTPException):
        connection.request("GET", "/health/liveliness")
        return connection.getresponse().status == 200
    return False


config = SCRATCH / "config.yaml"
config.write_text(json.dumps(configuration()))  # JSON is YAML
os.environ |= {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
command = ["litellm", "--config", str(config), "--host", "127.0.0.1", "--port", str(PORT), "--telemetry", "False"]
proxy = ExitStack()
atexit.register(proxy.close)
proxy.enter_context(process_of([str(BIN / command[0]), *command[1:]], sys.stderr))
until(ready, "the proxy does not start")


@check("models")
def models() -> None:
    assert {model.id for model in chat.models.list()} >= set(BASES)


@check("chat")
def one_answer() -> None:
    for model in BASES:
        answer = chat.chat.completions.create(model=model, messages=HELLO)
        assert answer.choices[0].message.content == SAID
        assert answer.usage.completion_tokens > 0
        assert chat.responses.create(model=model, input="Hello").output_text == SAID
        answer = messages.messages.create(model=model, messages=HELLO, max_tokens=100)
        assert answer.content[0].text == SAID
        assert messages.messages.count_tokens(model=model, messages=HELLO).input_tokens > 0


@check("chat stream")
def stream() -> None:
    for model in BASES:
        parts = chat.chat.completions.create(model=model, messages=HELLO, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == SAID
        with chat.responses.stream(model=model, input="Hello") as events:
            assert events.get_final_response().output_text == SAID
        with messages.messages.stream(model=model, messages=HELLO, max_tokens=100) as streamed:
            assert "".join(streamed.text_stream) == SAID


@check("second turn")
def second_turn() -> None:
    for model in BASES:
        said = chat.chat.completions.create(model=model, messages=PONDER).choices[0].message
        turns = [*PONDER, said, user("And now?")]
        answer = chat.chat.completions.create(model=model, messages=turns)
        assert answer.choices[0].message.content == SAID
        said = messages.messages.create(model=model, messages=PONDER, max_tokens=100).content
        turns = [*PONDER, {"role": "assistant", "content": said}, user("And now?")]
        answer = messages.messages.create(model=model, messages=turns, max_tokens=100)
        assert answer.content[-1].text == SAID


@check("completion")
def completion() -> None:
    for model in BASES:
        assert SAID in chat.completions.create(model=model, prompt="Hello", max_tokens=5).choices[0].text


@check("completion stream")
def completion_stream() -> None:
    for model in BASES:
        parts = chat.completions.create(model=model, prompt="Hello", max_tokens=5, stream=True)
        assert SAID in "".join(part.choices[0].text or "" for part in parts)


@check("tools")
def tools() -> None:
    for model in CHOOSING:
        asked = {"model": model, "tools": TOOLS}
        turns = [user("Read the note")]
        with forced("read"):
            said = chat.chat.completions.create(messages=turns, **asked).choices[0].message
        (call,) = said.tool_calls
        assert json.loads(call.function.arguments) == {"name": SAID}
        turns += [said, {"role": "tool", "tool_call_id": call.id, "content": read(SAID)}]
        for other in (model, "ollama_chat"):
            answer = chat.chat.completions.create(messages=turns, **asked | {"model": other})
            assert answer.choices[0].message.content == SAID


@check("tools")
def tools_of_messages() -> None:
    for model in CHOOSING:
        asked = {"model": model, "max_tokens": 200, "tools": [{"name": "read", "input_schema": PARAMETERS}]}
        turns = [user("Read the note")]
        with forced("read"):
            said = messages.messages.create(messages=turns, **asked).content
        assert said[-1].input == {"name": SAID}
        result = {"type": "tool_result", "tool_use_id": said[-1].id, "content": read(SAID)}
        turns += [{"role": "assistant", "content": said}, user([result])]
        assert messages.messages.create(messages=turns, **asked).content[-1].text == SAID


@check("tools stream")
def tools_stream() -> None:
    for model in CHOOSING:
        with forced("read"):
            streamed = chat.chat.completions.create(
                model=model,
                messages=[user("Read the note")],
                tools=TOOLS,
                stream=True,
            )
            deltas = [call for part in streamed for call in part.choices[0].delta.tool_calls or ()]
        assert json.loads("".join(delta.function.arguments or "" for delta in deltas)) == {"name": SAID}


@check("thoughts")
def thoughts() -> None:
    for model in BASES:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        asked = {"model": model, "messages": PONDER, "max_tokens": 2048, "thinking": thinking}
        assert [block.type for block in messages.messages.create(**asked).content] == ["thinking", "text"]
        if model == "anthropic":
            continue  # returns thoughts only on request, and the proxy requests none from models that it does not know
        asked = {"model": model, "messages": PONDER}
        message = chat.chat.completions.create(**asked).choices[0].message
        assert (message.reasoning_content, message.content) == ("hm", SAID)
        deltas = [part.choices[0].delta for part in chat.chat.completions.create(**asked, stream=True)]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"


@check("structured output")
def structured() -> None:
    for model in BASES:
        answer = chat.chat.completions.parse(model=model, messages=HELLO, response_format=City)
        assert answer.choices[0].message.parsed.motto == SAID


@check("overflow")
def overflow() -> None:
    for model in BASES:
        asked = {"model": f"small-{model}", "messages": [user(LONG)]}
        expect(openai.BadRequestError, lambda of=asked: chat.chat.completions.create(**of), "512")
        expect(anthropic.BadRequestError, lambda of=asked: messages.messages.create(**of, max_tokens=10), "512")


@check("cancellation")
def cancellation() -> None:
    for model in BASES:
        with chat.chat.completions.create(model=model, messages=[user(ENDLESS)], stream=True) as parts:
            next(iter(parts))
            assert running() > 0
        until(lambda: running() == 0, f"the request of {model} goes on")


@check("errors")
def errors() -> None:
    for model in BASES:
        asked = {"model": f"other-{model}", "messages": HELLO}
        expect(openai.NotFoundError, lambda of=asked: chat.chat.completions.create(**of), "does not exist")
