"""aider, with its own prompts, as `aider --message` runs it. It calls no tools."""

import json
from pathlib import Path

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, leave, run
from checks import MODEL, URL, check

HOME = folder("home")
NAME = f"openai/{MODEL}"
QUIET = ("--no-check-update", "--no-show-release-notes", "--analytics-disable")
COMMAND = ("aider", "--model", NAME, "--no-git", *QUIET, "--message")
# The context of a model that is not in this file is looked up on GitHub.
METADATA = {NAME: {"max_input_tokens": 131_072, "max_output_tokens": 4096, "litellm_provider": "openai"}}


def work_folder(name: str) -> Path:
    """Make a folder in which the model is known."""
    made = folder(name)
    (made / ".aider.model.metadata.json").write_text(json.dumps(METADATA))
    return made


WORK, CONVERSATION = work_folder("work"), work_folder("conversation")


def setting(url: str = URL) -> dict[str, str]:
    server = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    return server | {"HOME": str(HOME), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def aider(message: str, *options: str, where: Path = WORK, url: str = URL) -> list[str]:
    """Return the lines that are written."""
    said = run([*COMMAND, message, *options], where, setting(url))
    return [line.strip() for line in said.splitlines()]


@check("chat")
def one_answer() -> None:
    assert SAID in aider("Hello", "--no-stream")


@check("chat stream")
def stream() -> None:
    assert SAID in aider("Hello")


@check("second turn")
def second_turn() -> None:
    assert SAID in aider("Hello", where=CONVERSATION)
    said = aider("And now?", "--restore-chat-history", where=CONVERSATION)
    assert "Restored previous conversation history." in said
    assert SAID in said


@check("thoughts")
def thoughts() -> None:
    for options in ((), ("--no-stream",)):
        said = aider("Please ponder this", *options)
        assert [line for line in said if line in {"hm", SAID}] == ["hm", SAID]


@check("overflow")
def overflow() -> None:
    assert f"Model {NAME} has hit a token limit!" in aider("Hello", url=SMALL_URL)


@check("cancellation")
def cancellation() -> None:
    leave([*COMMAND, ENDLESS], WORK, setting())
