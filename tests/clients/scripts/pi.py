"""pi, with its own prompt and tools, over chat, responses and messages, as `pi -p` runs it."""

import json

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

HOME = folder("home")
WORK = folder("work")
OWN = {"HOME": str(HOME), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
APIS = ("openai-completions", "openai-responses", "anthropic-messages")


def provider(api: str, url: str) -> dict[str, object]:
    """An entry of pi's `models.json`."""
    base = url if api == "anthropic-messages" else f"{url}/v1"
    return {"baseUrl": base, "api": api, "apiKey": "none", "models": [{"id": MODEL, "reasoning": True}]}


PROVIDERS = {api: provider(api, URL) for api in APIS} | {f"small-{api}": provider(api, SMALL_URL) for api in APIS}
(HOME / ".pi" / "agent").mkdir(parents=True)
(HOME / ".pi" / "agent" / "models.json").write_text(json.dumps({"providers": PROVIDERS}))


def pi(api: str, *arguments: str) -> str:
    return run(["pi", "--model", f"{api}/{MODEL}", *arguments], WORK, OWN)


@check("chat stream")
def stream() -> None:
    for api in APIS:
        assert pi(api, "-p", "Hello").strip() == SAID
        assert '"type":"text_delta"' in pi(api, "--mode", "json", "-p", "Hello")


@check("second turn")
def second_turn() -> None:
    for api in APIS:
        for more in ("-p", "Please ponder this"), ("--continue", "-p", "And now?"):
            assert pi(api, *more).strip() == SAID


@check("thoughts")
def thoughts() -> None:
    for api in APIS:
        assert '"type":"thinking","thinking":"hm"' in pi(api, "--mode", "json", "-p", "Please ponder this")


@check("tools")
def tools() -> None:
    (WORK / "ok").write_text("a note")
    for api in APIS:
        with forced("read"):
            said = pi(api, "--mode", "json", "-p", "Read the note")
        assert '"result":{"content":[{"type":"text","text":"a note"}]}' in said
        assert f'"type":"text_end","contentIndex":0,"content":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    # It compacts a conversation that is too long, and says so in this mode alone.
    for api in APIS:
        said = pi(f"small-{api}", "--mode", "json", "-p", "Hello")
        assert '"type":"compaction_start","reason":"overflow"' in said


@check("cancellation")
def cancellation() -> None:
    leave(["pi", "--model", f"{APIS[0]}/{MODEL}", "-p", ENDLESS], WORK, OWN)
