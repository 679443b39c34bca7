"""Codex CLI, with its own prompt and tools, as `codex exec` runs it."""

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

HOME = folder("home")
WORK = folder("work")
OWN = {"HOME": str(HOME)}
# Plugins are fetched from a store of its maker.
CONFIGURATION = f"""
model = "{MODEL}"
model_provider = "own"
check_for_update_on_startup = false
[features]
plugins = false
[analytics]
enabled = false
[feedback]
enabled = false
[model_providers.own]
name = "own"
base_url = "{URL}/v1"
wire_api = "responses"
"""
(HOME / ".codex").mkdir()
(HOME / ".codex" / "config.toml").write_text(CONFIGURATION)
COMMAND = ("codex", "exec", "--skip-git-repo-check")


def codex(*arguments: str, url: str = URL, fails: bool = False) -> str:
    return run([*COMMAND, "-c", f"model_providers.own.base_url={url}/v1", *arguments], WORK, OWN, fails=fails)


@check("models")
def models() -> None:
    for provider in ("lmstudio", "ollama"):
        local = ["--oss", "--local-provider", provider, "--model", MODEL]
        assert run([*COMMAND, *local, "Hello"], WORK, OWN | {"CODEX_OSS_BASE_URL": f"{URL}/v1"}).strip() == SAID


@check("chat stream")
def stream() -> None:
    assert codex("Hello").strip() == SAID
    said = codex("--json", "Hello")
    assert f'"text":"{SAID}"' in said
    assert '"turn.completed"' in said


@check("second turn")
def second_turn() -> None:
    assert codex("Please ponder this").strip() == SAID
    assert codex("resume", "--last", "And now?").strip() == SAID


@check("thoughts")
def thoughts() -> None:
    assert '"reasoning_output_tokens":2' in codex("--json", "Please ponder this")


@check("tools")
def tools() -> None:
    with forced("exec_command"):
        said = codex("--json", "Run the command")
    assert '"command_execution"' in said
    assert f'"text":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    assert "ran out of room in the model's context window" in codex("Hello", url=SMALL_URL, fails=True)


@check("cancellation")
def cancellation() -> None:
    leave([*COMMAND, ENDLESS], WORK, OWN)
