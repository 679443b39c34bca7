"""Claude Code, with its own prompt and tools, as `claude -p` runs it."""

import shutil

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check
from image_checks import SQUARES

HOME = folder("home")
NAMES = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL")
SETTING = {"HOME": str(HOME), "ANTHROPIC_AUTH_TOKEN": "none", **dict.fromkeys(NAMES, MODEL)}
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
WORK = folder("work")


def claude(*arguments: str, url: str = URL, fails: bool = False) -> str:
    return run(["claude", "-p", *arguments], WORK, SETTING | QUIET | {"ANTHROPIC_BASE_URL": url}, fails=fails)


@check("chat")
def one_answer() -> None:
    assert claude("Hello").strip() == SAID


@check("chat stream")
def stream() -> None:
    said = claude("Hello", "--output-format", "stream-json", "--verbose", "--include-partial-messages")
    assert '"text_delta"' in said
    assert '"is_error":false' in said


@check("second turn")
def second_turn() -> None:
    assert claude("Hello").strip() == SAID
    assert claude("--continue", "And now?").strip() == SAID


@check("thoughts")
def thoughts() -> None:
    said = claude("Please ponder this", "--output-format", "stream-json", "--verbose")
    assert '"thinking":"hm"' in said


@check("tools")
def tools() -> None:
    (WORK / "ok").write_text("a note")
    with forced("Read"):
        said = claude("Read the note", "--output-format", "stream-json", "--verbose")
    assert '"name":"Read"' in said
    assert '"tool_result"' in said
    assert f'"result":"{SAID}"' in said


@check("images")
def images() -> None:
    for colour in ("red", "blue"):
        shutil.copy(SQUARES / f"{colour}.png", WORK)
        with forced("Read", file=f"{colour}.png"):
            said = claude("Read the picture", "--output-format", "stream-json", "--verbose")
        assert f'"result":"{colour}"' in said


@check("overflow")
def overflow() -> None:
    assert "too long" in claude("Hello", url=SMALL_URL, fails=True)


@check("cancellation")
def cancellation() -> None:
    leave(["claude", "-p", ENDLESS], WORK, SETTING | QUIET | {"ANTHROPIC_BASE_URL": URL})
