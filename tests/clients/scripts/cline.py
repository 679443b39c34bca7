"""Cline's command over chat, responses, messages and Ollama's API; a second turn of it needs a terminal."""

import json
from pathlib import Path

from agent_checks import ENDLESS, SAID, SMALL_URL, folder, forced, leave, run
from checks import MODEL, URL, check

WORK = folder("work")
CHAT, RESPONSES, MESSAGES, OLLAMA = "openai-compatible", "openai-native", "anthropic", "ollama"


def home(name: str, url: str) -> Path:
    """Make a home whose settings have the server at `url` as each kind of provider."""
    settings = folder(name) / ".cline" / "data" / "settings"
    settings.mkdir(parents=True)
    (settings / "global-settings.json").write_text('{"telemetryOptOut": true, "autoUpdateEnabled": false}')
    urls = dict.fromkeys((CHAT, RESPONSES, MESSAGES), f"{url}/v1") | {OLLAMA: url}
    providers = {
        provider: {
            "settings": {"provider": provider, "apiKey": "none", "model": MODEL, "baseUrl": base},
            "updatedAt": "2026-01-01T00:00:00.000Z",
            "tokenSource": "manual",
        }
        for provider, base in urls.items()
    }
    stored = {"version": 1, "lastUsedProvider": CHAT, "modes": {}, "providers": providers}
    (settings / "providers.json").write_text(json.dumps(stored))
    return settings.parents[2]


HOME, SMALL_HOME = home("home", URL), home("small", SMALL_URL)
# It asks its maker for features, which nothing turns off: no such request gets out. Nor does a process outlive it.
OWN = {
    "HOME": str(HOME),
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "CLINE_NO_AUTO_UPDATE": "1",
    "CLINE_SESSION_BACKEND_MODE": "local",
}


def cline(provider: str, *arguments: str) -> str:
    return run(["cline", "--provider", provider, *arguments], WORK, OWN)


@check("models")
def models() -> None:
    assert cline(OLLAMA, "Hello there").strip() == SAID


@check("chat stream")
def stream() -> None:
    for provider in (CHAT, RESPONSES, MESSAGES, OLLAMA):
        said = cline(provider, "--json", "Hello there")
        assert f'"contentType":"text","text":"{SAID}"' in said
        assert '"finishReason":"completed"' in said


@check("thoughts")
def thoughts() -> None:
    for provider in (CHAT, OLLAMA):
        assert '"contentType":"reasoning","reasoning":"hm"' in cline(provider, "--json", "Please ponder this")


@check("tools")
def tools() -> None:
    for provider in (CHAT, RESPONSES, MESSAGES):
        with forced("read_files"):
            said = cline(provider, "--json", "Read the note")
        assert '"toolName":"read_files"' in said
        assert f'"contentType":"text","text":"{SAID}"' in said


@check("overflow")
def overflow() -> None:
    for provider in (CHAT, RESPONSES, MESSAGES, OLLAMA):
        command = ["cline", "--provider", provider, "Hello there"]
        said = run(command, WORK, OWN | {"HOME": str(SMALL_HOME)}, fails=True)
        assert "exceeds the model's context window" in said


@check("cancellation")
def cancellation() -> None:
    leave(["cline", ENDLESS], WORK, OWN)
