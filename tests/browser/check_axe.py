"""The page by axe-core, which knows what guidelines of accessibility say (https://www.w3.org/TR/WCAG22/)."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from check_images import choose, png
from conftest import Open
from playwright.sync_api import Page, expect

from tests.support.real_server import RealServer
from tests.support.stand_in import StandIn

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Turin"}}\n</tool_call>'
ANSWER = "# Head\n\n- a `b`\n\n> c\n\n| d |\n|---|\n| e |\n\n```\nf\n```"
NARROW = {"width": 360, "height": 720}


def broken(page: Page) -> list[str]:
    """The rules that the page breaks, each with what breaks it."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in found]


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


# The check is a script that the page's own policy would not let in.
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_guideline_is_broken(stand_in: StandIn, open_page: Open, scheme: str, narrow: bool) -> None:
    size = {"viewport": NARROW} if narrow else {}
    page = open_page(stand_in.url, color_scheme=scheme, bypass_csp=True, **size)
    expect(page.locator("#state")).to_have_text("serving")
    assert broken(page) == []
    page.get_by_role("button", name="Settings").click()
    page.locator("#settings-form [name=tools]").fill(json.dumps([{"name": "weather", "parameters": {}}]))
    page.locator("#settings-form [name=seed]").fill("x")
    page.get_by_role("button", name="Apply").click()
    assert broken(page) == []
    page.locator("#settings-form [name=seed]").fill("1")
    page.get_by_role("button", name="Apply").click()
    stand_in.engine.reply = f"<think>Hm.</think>{ANSWER}"
    ask(page, "So?")
    page.get_by_text("Thought for").click()
    assert broken(page) == []
    stand_in.engine.reply = CALL
    ask(page, "The weather?")
    expect(page.get_by_label("Result of call 1")).to_be_visible()
    assert broken(page) == []
    stand_in.engine.fail_after = 1
    page.get_by_role("button", name="Send result").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert broken(page) == []
    page.get_by_role("button", name="API key").click()
    assert broken(page) == []
    page.keyboard.press("Escape")
    if narrow:
        page.get_by_role("button", name="Machine").click()
        expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        assert broken(page) == []
    page.evaluate("document.querySelector('#open-settings').textContent = ''")
    if not narrow:
        assert broken(page) == ["button-name: [['#open-settings']]"]


@pytest.mark.parametrize("narrow", [False, True])
def test_images_break_no_guideline(seeing: RealServer, open_page: Open, narrow: bool) -> None:
    page = open_page(seeing.url, bypass_csp=True, **({"viewport": NARROW} if narrow else {}))
    choose(page, *(png(colour) for colour in ("red", "blue", "green", "black")))
    expect(page.get_by_role("button", name="Remove green.png")).to_be_visible()
    expect(page.locator("#composer").get_by_role("alert")).to_contain_text("black.png")
    assert broken(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("img", name="red.png")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".turn.answer footer")).to_be_visible()
    assert broken(page) == []
