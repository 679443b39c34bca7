"""Qwen Code, with its own prompts and tools, as `qwen PROMPT` runs it."""

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

HOME = folder("home")
WORK = folder("work")
QUIET = {"QWEN_USAGE_STATISTICS_ENABLED": "0", "QWEN_TELEMETRY_ENABLED": "0"}
EVENTS = ("--output-format", "stream-json")
(HOME / ".qwen").mkdir()
(HOME / ".qwen" / "settings.json").write_text('{"general": {"enableAutoUpdate": false}}')


def setting(url: str = URL) -> dict[str, str]:
    names = {"HOME": str(HOME), "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    return QUIET | names


def qwen(*arguments: str) -> str:
    return run(["qwen", *arguments], WORK, setting())


@check("chat")
def one_answer() -> None:
    assert qwen("Hello").strip() == SAID


@check("chat stream")
def stream() -> None:
    said = qwen("Hello", *EVENTS, "--include-partial-messages")
    assert f'"type":"text_delta","text":"{SAID}"' in said
    assert '"is_error":false' in said


@check("second turn")
def second_turn() -> None:
    assert qwen("Hello").strip() == SAID
    assert qwen("--continue", "And now?").strip() == SAID


@check("thoughts")
def thoughts() -> None:
    said = qwen("Please ponder this", *EVENTS)
    assert '"thinking":"hm"' in said
    assert f'"result":"{SAID}"' in said


@check("tools")
def tools() -> None:
    (WORK / "ok").write_text("a note")
    with forced("glob"):
        said = qwen("Find the note", *EVENTS)
    assert '"name":"glob"' in said
    assert "Found 1 matching file" in said
    assert f'"result":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    said = run(["qwen", "Hello"], WORK, setting(SMALL_URL), fails=True)
    assert "maximum context length is 512 tokens" in said


@check("cancellation")
def cancellation() -> None:
    leave(["qwen", ENDLESS], WORK, setting())
