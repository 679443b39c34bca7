"""The chat, over an engine whose answers are given."""

import json
import re

import pytest
from conftest import Open
from playwright.sync_api import Page, expect

from tests.support.stand_in import StandIn

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Turin"}}\n</tool_call>'
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
HOSTILE = """<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>

# <b onclick="window.broken = 1">head</b>

- <svg/onload=window.broken=1>
- [a link](javascript:window.broken=1) ![a picture](https://elsewhere.example/x.png)

| <i>a</i> | b |
|---|---|
| **<u>x</u>** | `<s>y</s>` |

```html
<iframe src="https://elsewhere.example"></iframe>
```
"""


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, count: int = 1) -> None:
    expect(page.locator(".turn.answer footer:visible")).to_have_count(count)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def set_up(page: Page, **fields: str) -> None:
    page.get_by_role("button", name="Settings").click()
    for name, value in fields.items():
        page.locator(f"#settings-form [name={name}]").fill(value)
    page.get_by_role("button", name="Apply").click()


def test_an_answer_is_written_and_its_figures_are_told(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.reply = "## Head\n\nSome **bold** and `code`.\n\n1. one\n2. two"
    ask(page, "Hello <b>there</b>")
    answered(page)
    expect(page.locator(".turn.user .text")).to_have_text("Hello <b>there</b>")
    answer = page.locator(".turn.answer .prose")
    expect(answer.get_by_role("heading")).to_have_text("Head")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("ol li")).to_have_text(["one", "two"])
    expect(page.locator(".turn.answer footer")).to_contain_text("tokens")
    expect(page.locator(".turn.answer footer")).to_contain_text("stop")
    assert stand_in.template.messages == [{"role": "user", "content": "Hello <b>there</b>"}]


def test_what_a_model_writes_is_text(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.reply = f"<think>{HOSTILE}</think>{HOSTILE}"
    ask(page, HOSTILE)
    answered(page)
    turns = page.locator("#turns")
    expect(turns).to_contain_text('<img src=x onerror="window.broken = 1">')
    expect(turns).to_contain_text('<iframe src="https://elsewhere.example"></iframe>')
    assert turns.locator("img, script, iframe, a, svg, i, u, s, b").count() == 0
    assert page.evaluate("window.broken") is None


def test_the_browser_itself_makes_no_markup_of_text(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    refused = page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>'; } catch (e) { return e.name; } }")
    assert refused == "TypeError"
    for source in ("https://elsewhere.example/x.png", "data:image/gif;base64,R0lGODlhAQABAAAAACw="):
        page.evaluate("(src) => void document.body.append(Object.assign(new Image(), {src}))", source)
    page.wait_for_function("violations.length == 3")
    # All were meant: what else this browser would note of a page is noted.
    assert sorted(page.evaluate("violations.splice(0)")) == ["img-src", "img-src", "require-trusted-types-for"]
    assert page.mistakes.pop() == "asked for https://elsewhere.example/x.png"  # type: ignore[attr-defined]


def test_a_thought_is_folded(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.reply = "<think>Let me see.</think>It is so."
    ask(page, "Is it?")
    answered(page)
    expect(page.locator(".prose")).to_have_text("It is so.")
    thought = page.get_by_text("Let me see.")
    expect(thought).to_be_hidden()
    page.get_by_text("Thought for").click()
    expect(thought).to_be_visible()


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_that_is_stopped_stays_and_its_request_ends(stand_in: StandIn, open_page: Open, way: str) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.reply, stand_in.engine.pause_after = "It goes on and on", 5
    ask(page, "Go on")
    expect(page.locator(".prose")).to_have_text("It go")
    page.get_by_role("button", name="Stop").click() if way == "button" else page.keyboard.press("Escape")
    answered(page)
    expect(page.locator(".turn.answer footer")).to_contain_text("stopped")
    while not stand_in.engine.aborted:
        page.wait_for_timeout(20)
    stand_in.engine.pause_after = None
    ask(page, "And now?")
    answered(page, 2)
    assert [message["content"] for message in stand_in.template.messages] == ["Go on", "It go", "And now?"]


def test_a_call_is_shown_and_goes_on_with_its_result(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    set_up(page, tools=json.dumps([WEATHER]), system="Be brief.")
    stand_in.engine.reply = CALL
    ask(page, "How is the weather in Turin?")
    expect(page.locator(".call")).to_contain_text("weather")
    expect(page.locator(".call")).to_contain_text("Turin")
    assert stand_in.template.messages[0] == {"role": "system", "content": "Be brief."}
    assert len(stand_in.template.tools) == 1
    stand_in.engine.reply = "It is sunny."
    page.get_by_label("Result of call 1").fill("sun")
    page.get_by_role("button", name="Send result").click()
    answered(page, 2)
    expect(page.locator(".prose").last).to_have_text("It is sunny.")
    expect(page.locator(".call .result")).to_have_text("sun")
    assert [message["role"] for message in stand_in.template.messages] == ["system", "user", "assistant", "tool"]


def test_parameters_and_the_schema_are_sent(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    set_up(page, temperature="0.5", top_k="3", max_tokens="2", seed="7", schema='{"type": "integer"}')
    ask(page, "A number")
    answered(page)
    (admitted,) = stand_in.engine.admitted
    assert (admitted.sampling.temperature, admitted.sampling.top_k, admitted.sampling.seed) == (0.5, 3, 7)
    assert admitted.max_new_tokens == 2
    assert admitted.matcher is not None


def test_without_settings_answers_are_drawn_as_the_server_does_by_default(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    ask(page, "Is it?")
    answered(page)
    (admitted,) = stand_in.engine.admitted
    assert (admitted.sampling.temperature, admitted.sampling.top_p) == (0.25, 0.75)


def test_a_mistake_in_the_settings_is_told_where_it_is_made(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    for field, value, told in (("seed", "1.5", "whole number"), ("schema", "{", "JSON"), ("tools", "{}", "list")):
        set_up(page, seed="", schema="", tools="")
        set_up(page, **{field: value})
        expect(page.get_by_role("alert").filter(has_text=told)).to_be_visible()
        page.get_by_role("button", name="Cancel").click()


def test_an_error_of_the_server_is_shown(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    ask(page, "refuse me")
    answered(page)
    stand_in.engine.fail_after = 2
    ask(page, "Something else")
    answered(page, 2)
    expect(page.locator(".turn .notice").last).to_have_text("unused")


@pytest.mark.parametrize("status", [429, 503, 502])
def test_what_was_refused_is_told_and_is_a_part_of_the_next_question(
    stand_in: StandIn, open_page: Open, status: int
) -> None:
    page = open_page(stand_in.url)
    answer = {"body": "<html>"} if status == 502 else {"json": {"error": {"message": "Not now.", "code": status}}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=status, **answer))
    ask(page, "One")
    answered(page)
    expect(page.get_by_role("alert")).to_have_text("The server returned status 502." if status == 502 else "Not now.")
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    page.unroute_all(behavior="wait")
    ask(page, "Two")
    answered(page, 2)
    assert stand_in.template.messages == [{"role": "user", "content": "One\n\nTwo"}]


def test_a_server_that_dies_is_told_and_what_it_said_stays(open_page: Open) -> None:
    with StandIn() as mortal:
        page = open_page(mortal.url)
        expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        mortal.engine.reply, mortal.engine.pause_after = "It goes on and on", 5
        ask(page, "Go on")
        expect(page.locator(".prose")).to_have_text("It go")
    answered(page)
    expect(page.get_by_role("alert")).to_have_text("The connection to the server was lost.")
    ask(page, "And now?")
    answered(page, 2)
    expect(page.get_by_role("alert").last).to_have_text("The server does not answer.")
    expect(page.locator(".prose").first).to_have_text("It go")
    expect(page.locator("#state")).to_have_text("does not answer")
    expect(page.locator("#machine.old")).to_be_visible()


def test_who_waits_is_told_for_how_long(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.pause_after = 0
    ask(page, "Well?")
    expect(page.locator("#figures")).to_have_text(re.compile(r"waiting for \d+ s"))
    page.keyboard.press("Escape")
    answered(page)


def test_a_conversation_outlives_a_reload_and_ends_when_it_is_told(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    set_up(page, system="Be kind.", tools=json.dumps([WEATHER]))
    stand_in.engine.reply = CALL
    ask(page, "One")
    expect(page.get_by_label("Result of call 1")).to_be_visible()
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text("One")
    stand_in.engine.reply = "Two"
    page.get_by_label("Result of call 1").fill("1")
    page.get_by_role("button", name="Send result").click()
    answered(page, 2)
    page.reload()
    expect(page.locator(".prose").last).to_have_text("Two")
    page.get_by_role("button", name="Again").last.click()
    answered(page, 2)
    assert [message["role"] for message in stand_in.template.messages] == ["system", "user", "assistant", "tool"]
    page.get_by_role("button", name="New chat").click()
    page.reload()
    expect(page.get_by_text("Send a message to the model.")).to_be_visible()


def test_a_key_is_asked_for_and_forgotten_by_a_reload(open_page: Open) -> None:
    with StandIn("a-key") as guarded:
        page = open_page(guarded.url)
        expect(page.get_by_text("The server rejected this key.")).to_be_hidden()
        page.get_by_label("Key", exact=True).fill("not it")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The server rejected this key.")).to_be_visible()
        page.get_by_label("Key", exact=True).fill("a-key")
        page.keyboard.press("Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        guarded.engine.reply = "Yes"
        ask(page, "Am I in?")
        answered(page)
        assert "a-key" not in page.evaluate("JSON.stringify({...sessionStorage, ...localStorage}) + document.cookie")
        page.reload()
        expect(page.get_by_role("dialog", name="API key")).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
