"""GitHub Copilot CLI with a provider of one's own, over chat, responses and messages, as `copilot -p` runs it."""

from collections.abc import Mapping

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

HOME = folder("home")
WORK = folder("work")
OWN = {"HOME": str(HOME), "COPILOT_MODEL": MODEL}
QUIET = {"COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false"}


def providers(url: str = URL) -> list[dict[str, str]]:
    """The settings of a server at `url` over each API; the first is the default."""
    chat = {"COPILOT_PROVIDER_BASE_URL": f"{url}/v1"}
    messages = {"COPILOT_PROVIDER_BASE_URL": url, "COPILOT_PROVIDER_TYPE": "anthropic"}
    return [chat, chat | {"COPILOT_PROVIDER_WIRE_API": "responses"}, messages]


def copilot(provider: Mapping[str, str], *arguments: str, fails: bool = False) -> str:
    return run(["copilot", *arguments], WORK, OWN | QUIET | provider, fails=fails)


@check("chat")
def one_answer() -> None:
    assert copilot(providers()[0], "--silent", "--stream", "off", "-p", "Hello").strip() == SAID


@check("chat stream")
def stream() -> None:
    for provider in providers():
        said = copilot(provider, "--output-format", "json", "-p", "Hello")
        assert f'"deltaContent":"{SAID}"' in said
        assert '"exitCode":0' in said


@check("second turn")
def second_turn() -> None:
    for provider in providers():
        for more in (["-p", "Please ponder this"], ["--continue", "-p", "And now?"]):
            assert copilot(provider, "--silent", *more).strip() == SAID


@check("thoughts")
def thoughts() -> None:
    said = copilot(providers()[0], "--output-format", "json", "-p", "Please ponder this")
    assert '"reasoningText":"hm"' in said


@check("tools")
def tools() -> None:
    (WORK / "ok").write_text("a note")
    for provider in providers():
        with forced("view"):
            said = copilot(provider, "--output-format", "json", "-p", "Read the note")
        assert '"content":"a note' in said
        assert f'"deltaContent":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    chat, responses, messages = providers(SMALL_URL)
    for provider in (chat, responses):
        assert "maximum context length is 512 tokens" in copilot(provider, "-p", "Hello", fails=True)
    assert "rejected the prompt as too long" in copilot(messages, "-p", "Hello", fails=True)


@check("cancellation")
def cancellation() -> None:
    leave(["copilot", "-p", ENDLESS], WORK, OWN | QUIET | providers()[0])
