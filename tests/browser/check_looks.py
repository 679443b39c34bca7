"""What can be seen of the page, and by whom: dark and narrow screens, keyboards, readers of screens; and the machine.

With SCREENSHOTS=FOLDER in the environment the documentation's pictures are written there."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import Open
from playwright.sync_api import Page, expect

from tests.support.real_server import RealServer
from tests.support.stand_in import StandIn

NAMED = {"button", "textbox", "combobox", "checkbox", "link", "dialog", "image", "region", "complementary", "log"}
NARROW = {"width": 360, "height": 720}
QUESTION = "Name the capital of France."


def picture(page: Page, name: str) -> None:
    if "SCREENSHOTS" in os.environ:
        page.screenshot(path=Path(os.environ["SCREENSHOTS"]) / f"{name}.png")


def ask_the_model(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Apply").click()
    page.get_by_label("Message").fill(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator(".turn.answer footer")).to_contain_text("tokens/s", timeout=60_000)


def nameless(page: Page) -> list[str]:
    """The roles of what has to have a name for those who do not see it, and has none."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    return [
        node["role"]["value"]
        for node in tree["nodes"]
        if not node["ignored"] and node["role"]["value"] in NAMED and not node.get("name", {}).get("value")
    ]


def contrast(page: Page, selector: str) -> float:
    """The contrast of an element's text with what is behind it. https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""
    script = """(element) => {
        const channels = (color) => color.match(/[\\d.]+/g).map(Number);
        let behind = element;
        while (channels(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(channels);
    }"""
    light, dark = sorted((luminance(each[:3]) for each in page.eval_on_selector(selector, script)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(channels: list[float]) -> float:
    linear = [each / 255 / 12.92 if each <= 10 else ((each / 255 + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_everything_that_can_be_used_has_a_name(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    stand_in.engine.reply = "<think>Hm.</think>Yes."
    page.get_by_label("Message").fill("So?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.answer footer")).to_be_visible()
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    assert nameless(page) == []
    for button in ("Settings", "API key"):
        page.get_by_role("button", name=button).click()
        assert nameless(page) == []
        page.keyboard.press("Escape")
    page.evaluate("document.body.append(document.createElement('button'))")
    assert nameless(page) == ["button"]


def test_a_keyboard_is_enough(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    expect(page.get_by_label("Message")).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.user .text")).to_have_text("one\ntwo")
    expect(page.locator(".turn.answer footer")).to_be_visible()
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.ariaLabel"))
    assert {"Settings", "New chat", "Copy", "Again", "API key", "Measure the limits of the nodes"} <= reached
    page.get_by_role("button", name="Settings").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()


def test_text_can_be_read_in_light_and_in_dark(stand_in: StandIn, open_page: Open) -> None:
    paper = set()
    for scheme in ("light", "dark"):
        page = open_page(stand_in.url, color_scheme=scheme)
        page.get_by_label("Message").fill("So?")
        page.keyboard.press("Enter")
        expect(page.locator(".turn.answer footer")).to_be_visible()
        expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
        seen = (".prose p", ".turn h2", ".turn footer span", "#open-settings", "#send", ".machine h2", ".legend span")
        assert {selector: ratio for selector in seen if (ratio := contrast(page, selector)) < 4.5} == {}
        paper.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(paper) == 2


def test_a_narrow_screen_shows_one_of_both_and_nothing_is_cut_off(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url, viewport=NARROW)
    stand_in.engine.reply = f"{'long' * 60}\n\n```\n{'wide ' * 60}\n```"
    page.get_by_label("Message").fill("So?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.answer footer")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.querySelector('#turns').scrollWidth <= 360")
    expect(page.locator("#machine")).to_be_hidden()
    page.get_by_role("button", name="Machine").click()
    expect(page.get_by_role("heading", name="Queue")).to_be_visible()
    expect(page.get_by_label("Message")).to_be_hidden()
    assert page.evaluate("document.querySelector('#machine').scrollWidth") == 360


def test_models_are_shown_with_their_states_and_one_that_is_not_loaded_is_waited_for(
    stand_in: StandIn, open_page: Open
) -> None:
    page = open_page(stand_in.url)
    states = {"one": "ready", "two": "unloaded"}
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(
            json={"data": [dict(zip(("id", "state"), each, strict=True)) for each in states.items()]}
        ),
    )
    page.route("**/machine?model=two", lambda route: route.fulfill(status=503, json={"error": {"message": "unloaded"}}))
    page.reload()
    expect(page.locator("#machine li")).to_have_text(["oneready", "twounloaded"])
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    page.get_by_label("Model").select_option("two")
    expect(page.get_by_role("heading", name="Nodes")).to_be_hidden()  # they are those of the other one
    expect(page.locator("#state")).to_have_text("not ready")
    page.get_by_label("Message").focus()
    page.unroute("**/machine?model=two")
    states["two"] = "ready"
    expect(page.locator("#state")).to_have_text("serving")
    expect(page.locator("#machine li")).to_have_text(["oneready", "twoready"], timeout=15_000)
    expect(page.get_by_label("Model")).to_have_value("two")
    page.unroute_all(behavior="wait")


def test_nobody_is_asked_for_a_machine_that_nobody_sees(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url, viewport=NARROW)
    asked: list[str] = []
    expect(page.locator("#state")).to_have_text("serving")
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(4000)
    assert asked == []
    page.get_by_role("button", name="Machine").click()
    with page.expect_request("**/machine*"):
        pass


def test_the_machine_is_shown_as_it_is(real: RealServer, open_page: Open) -> None:
    page = open_page(real.url)
    machine = page.locator("#machine")
    expect(machine.get_by_text("rank 1", exact=False).first).to_be_visible()
    ask_the_model(page)
    expect(page.locator(".prose")).to_contain_text("Paris")
    expect(machine.get_by_role("table")).to_contain_text("attention")
    expect(machine.locator(".rank").first).to_contain_text("GB/s")
    expect(machine).to_contain_text("no pages misplaced")
    expect(machine.locator("svg.tree rect").first).to_be_attached()
    machine.get_by_role("button", name="Measure").click()
    expect(machine.locator(".rank h3").first).to_contain_text(" of ", timeout=30_000)


def test_a_limit_that_was_not_measured_is_said_to_be_so(real: RealServer, open_page: Open) -> None:
    page = open_page(real.url)
    ceilings = {"isa": "avx512", "threads": 1, "read_bytes_s": None, "flops_s": {"bf16": 1e9}}
    profile = [{"rank": rank, "ceilings": ceilings if rank else None} for rank in range(2)]
    page.route("**/server_info*ceilings=1", lambda route: route.fulfill(json={"profile": profile}))
    page.locator("#machine").get_by_role("button", name="Measure").click()
    for rank in range(2):
        expect(page.locator("#machine .rank h3").nth(rank)).to_contain_text("limit not measured")


def test_it_is_looked_at_while_others_use_the_server(real: RealServer, open_page: Open) -> None:
    story = "Once upon a time there was a city by the sea, and in it there was a tower. " * 8
    for scheme in ("light", "dark"):
        page = open_page(real.url, color_scheme=scheme, viewport={"width": 1280, "height": 1040})
        ask_the_model(page)
        with ThreadPoolExecutor(8) as others:
            prompts = [f"{story}In the tower lived {who * 40}" for who in "abcdefgh"]
            asked = [others.submit(real.complete, prompt, 900, ignore_eos=True) for prompt in prompts]
            expect(page.locator("#machine")).to_contain_text("8 of 64 running")
            page.wait_for_timeout(5000)  # three more reports, for the line of recent rates
            picture(page, f"ui-{scheme}")
            assert not any(each.done() for each in asked), "the picture is of fewer clients"
    page = open_page(real.url, viewport=NARROW)
    ask_the_model(page)
    picture(page, "ui-narrow")
