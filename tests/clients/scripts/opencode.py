"""opencode, with its own prompts and tools, as `opencode run` runs it."""

import json

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

WORK = folder("work")
# Without the last one it looks for packages of plugins.
QUIET = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "npm_config_offline": "true"}
CONFIGURATION = {"model": f"numaserve/{MODEL}", "enabled_providers": ["numaserve"], "autoupdate": False}


def setting(name: str, url: str) -> dict[str, str]:
    """Make a home whose configuration names the server at `url`; return what it takes to run there."""
    home = folder(name)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "numaserve",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {MODEL: {"name": MODEL}},
    }
    file = home / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(CONFIGURATION | {"provider": {"numaserve": provider}}))
    # It works in the folder that PWD names.
    return QUIET | {"HOME": str(home), "PWD": str(WORK)}


SETTING, SMALL = setting("home", URL), setting("small", SMALL_URL)


def opencode(*arguments: str) -> str:
    return run(["opencode", "run", *arguments], WORK, SETTING)


@check("chat stream")
def stream() -> None:
    assert opencode("Hello").strip() == SAID


@check("second turn")
def second_turn() -> None:
    assert opencode("Hello").strip() == SAID
    assert opencode("--continue", "And now?").strip() == SAID


@check("thoughts")
def thoughts() -> None:
    said = opencode("--format", "json", "--thinking", "Please ponder this")
    assert '"text":"hm"' in said
    assert f'"text":"{SAID}"' in said


@check("tools")
def tools() -> None:
    (WORK / "ok").write_text("a note")
    with forced("read"):
        said = opencode("--format", "json", "Read the note")
    assert '"tool":"read"' in said
    assert '"text":"a note"' in said
    assert f'"text":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    said = run(["opencode", "run", "--format", "json", "Hello"], WORK, SMALL, fails=True)
    assert "ContextOverflowError" in said
    assert "maximum context length is 512 tokens" in said


@check("cancellation")
def cancellation() -> None:
    leave(["opencode", "run", ENDLESS], WORK, SETTING)
