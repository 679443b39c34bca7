"""Images in the chat: from the file to the answer, and what becomes of the others."""

import base64
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from conftest import Open
from playwright.sync_api import FilePayload, Page, expect

from tests.demo_images.checkpoint import square
from tests.support.real_server import RealServer
from tests.support.stand_in import StandIn

MISSING = {"type": "text", "text": "[An image that is no longer sent.]"}
LIMITS = {"max_images": 2, "max_file_bytes": 1 << 20, "max_body_bytes": (1 << 20) + 4000}
TRANSFER = """([name, type, text]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(text), (each) => each.charCodeAt(0))], name, {type}));
    return transfer;
}"""

PASTE = "(field, clipboardData) => field.dispatchEvent(new ClipboardEvent('paste', {clipboardData, cancelable: true}))"


def png(colour: str) -> FilePayload:
    file = io.BytesIO()
    square(colour, size=300).save(file, "PNG")
    return {"name": f"{colour}.png", "mimeType": "image/png", "buffer": file.getvalue()}


def noise(name: str, size: int) -> FilePayload:
    """A file of `size` bytes that only says it is an image."""
    return {"name": name, "mimeType": "image/png", "buffer": b"n" * size}


def choose(page: Page, *files: FilePayload) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add images").click()
    chooser.value.set_files(files)


def _dispatch(page: Page, selector: str, event: str, file: FilePayload) -> None:
    text = base64.b64encode(file["buffer"]).decode()
    transfer = page.evaluate_handle(TRANSFER, [file["name"], file["mimeType"], text])
    page.dispatch_event(selector, event, {"dataTransfer": transfer})


def drop(page: Page, *files: FilePayload) -> None:
    for file in files:
        _dispatch(page, "#turns", "dragover", file)
        expect(page.locator("#chat")).to_have_class("chat dropping")
        _dispatch(page, "#turns", "drop", file)
        expect(page.locator("#chat")).to_have_class("chat")


def paste(page: Page, *files: FilePayload) -> None:
    for file in files:
        text = base64.b64encode(file["buffer"]).decode()
        transfer = page.evaluate_handle(TRANSFER, [file["name"], file["mimeType"], text])
        page.get_by_label("Message").evaluate(PASTE, transfer)


def send(page: Page, text: str = "") -> None:
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, count: int = 1) -> None:
    expect(page.locator(".turn.answer footer:visible")).to_have_count(count, timeout=30_000)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def waiting(page: Page) -> Any:
    return page.get_by_role("list", name="Images to send").get_by_role("img")


def contents(body: str | None) -> list[Any]:
    """The contents of a request's messages, an image as its type."""
    assert body is not None
    return [_short(message["content"]) for message in json.loads(body)["messages"]]


def _short(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [part["image_url"]["url"].partition(",")[0] if "image_url" in part else part for part in content]


def spoken(page: Page, answers: Sequence[str]) -> Callable[[], list[Any]]:
    """Give the next requests these answers; returns what the last one had."""
    given, asked = iter(answers), list[str | None]()

    def fulfill(route: Any) -> None:
        asked.append(route.request.post_data)
        choice = {"choices": [{"delta": {"content": next(given)}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(choice)}\n\ndata: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", fulfill, times=len(answers))
    return lambda: contents(asked[-1])


def limited(page: Page, stand_in: StandIn, **limits: int) -> None:
    """Make the page believe that the model takes images within these limits."""
    listed = {"id": "tiny/bytes", "image_limits": LIMITS | limits}
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [listed]}))
    page.reload()
    expect(page.locator("#state")).to_have_text("serving")


PNG = "data:image/png;base64"


def test_images_reach_the_model_and_stay_in_sight_until_a_reload(seeing: RealServer, open_page: Open) -> None:
    page = open_page(seeing.url)
    page.get_by_role("button", name="Settings").click()
    for name, value in {"system": "Copy the words.", "temperature": "0", "max_tokens": "8"}.items():
        page.locator(f"#settings-form [name={name}]").fill(value)
    page.get_by_role("button", name="Apply").click()
    spoken(page, ["green yellow"])
    choose(page, png("green"), png("yellow"))
    expect(waiting(page)).to_have_count(2)
    send(page)
    answered(page)
    choose(page, png("red"))
    expect(waiting(page)).to_have_count(1)
    with page.expect_request("**/v1/chat/completions") as request:
        send(page)
    answered(page, 2)
    assert contents(request.value.post_data) == ["Copy the words.", [PNG, PNG], "green yellow", [PNG]]
    expect(page.locator(".prose").last).to_contain_text("red")
    shown = page.locator(".turn.user").get_by_role("img")
    assert [each.get_attribute("alt") for each in shown.all()] == ["green.png", "yellow.png", "red.png"]
    assert all(each.evaluate("(image) => image.complete && image.naturalWidth === 300") for each in shown.all())
    assert page.evaluate("sessionStorage.getItem('numaserve').length") < 1000
    page.reload()
    expect(page.locator(".turn.user").first).to_contain_text("The image “green.png” was lost by the reload.")
    with page.expect_request("**/v1/chat/completions") as request:
        send(page, "And now?")
    answered(page, 3)
    assert contents(request.value.post_data)[1] == [MISSING, MISSING]
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("give", [choose, drop, paste])
def test_an_image_can_be_removed_before_it_is_sent(
    seeing: RealServer, open_page: Open, give: Callable[..., None]
) -> None:
    page = open_page(seeing.url)
    expect(page.get_by_role("button", name="Add images")).to_have_attribute(
        "title", "Up to 3 images of at most 10.24 KiB each"
    )
    give(page, png("red"), png("blue"))
    expect(waiting(page)).to_have_count(2)
    figures = re.compile(r"2 of 3 images · \d\.\d+ KiB · at most 10.24 KiB each")
    expect(page.locator("#image-figures")).to_have_text(figures)
    page.get_by_role("button", name="Remove red.png").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove blue.png")).to_be_focused()
    asked = spoken(page, ["Well."])
    send(page, "So?")
    answered(page)
    assert asked() == [[PNG, {"type": "text", "text": "So?"}]]
    expect(waiting(page)).to_have_count(0)


def test_what_exceeds_a_limit_of_the_server_is_not_added(seeing: RealServer, open_page: Open) -> None:
    page = open_page(seeing.url)
    problem = page.locator("#composer").get_by_role("alert")
    choose(page, noise("large.png", 11_000), {"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"})
    expect(problem).to_contain_text("“large.png” has 10.74 KiB; the limit is 10.24 KiB.")
    expect(problem).to_contain_text("“a.pdf” has an unknown format.")
    expect(waiting(page)).to_have_count(0)
    choose(page, *(png(colour) for colour in ("red", "blue", "green", "black")))
    expect(problem).to_have_text("“black.png” exceeds the limit of 3 images. Remove another image first.")
    expect(waiting(page)).to_have_count(3)
    page.get_by_role("button", name="Remove blue.png").focus()
    for _ in range(2):  # the models are listed again and again; when the second answer comes, the first one was shown
        page.wait_for_event("response", lambda answer: answer.url.endswith("/v1/models"))
    expect(page.get_by_role("button", name="Remove blue.png")).to_be_focused()
    page.get_by_role("button", name="New chat").click()
    expect(waiting(page)).to_have_count(0)
    expect(problem).to_have_count(0)


def test_an_image_that_the_server_refuses_is_not_sent_again(seeing: RealServer, open_page: Open) -> None:
    page = open_page(seeing.url)
    choose(page, noise("odd.png", 99))
    expect(waiting(page)).to_have_count(1)
    send(page, "What is it?")
    answered(page)
    expect(page.locator(".turn .notice")).to_contain_text("Invalid value for 'messages[0].content[0]'")
    page.get_by_role("button", name="Again").click()
    answered(page)
    expect(page.locator(".turn .notice")).to_have_count(1)
    asked = spoken(page, ["Well."])
    send(page, "Never mind.")
    answered(page, 2)
    assert asked() == ["What is it?\n\nNever mind."]


def test_images_of_a_request_that_failed_are_a_part_of_the_next(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    limited(page, stand_in)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json={}), times=1)
    choose(page, png("red"))
    expect(waiting(page)).to_have_count(1)
    send(page, "One")
    answered(page)
    asked = spoken(page, ["Well."])
    send(page, "Two")
    answered(page, 2)
    assert asked() == [[PNG, {"type": "text", "text": "One\n\nTwo"}]]


def test_the_oldest_images_are_left_out_of_what_would_be_too_long(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    limited(page, stand_in, max_body_bytes=(1 << 20) + 3000)
    choose(page, noise("a.png", 900), noise("b.png", 1800))
    expect(page.locator("#composer").get_by_role("alert")).to_contain_text("“b.png” exceeds the limit of one request.")
    asked = spoken(page, ["One.", "Two."])
    send(page)
    answered(page)
    choose(page, noise("c.png", 1500))
    expect(waiting(page)).to_have_count(1)
    send(page)
    answered(page, 2)
    assert asked() == [[MISSING], "One.", [PNG]]


def test_images_are_offered_for_models_that_take_them_alone(stand_in: StandIn, open_page: Open) -> None:
    page = open_page(stand_in.url)
    expect(page.locator("#state")).to_have_text("serving")
    expect(page.get_by_role("button", name="Add images")).to_be_hidden()
    paste(page, png("red"))
    expect(waiting(page)).to_have_count(0)
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(json={"data": [{"id": "sees", "image_limits": LIMITS}, {"id": "reads"}]}),
    )
    page.route("**/machine?*", lambda route: route.abort())
    page.reload()
    choose(page, png("red"))
    asked = spoken(page, ["Red.", "What?"])
    expect(waiting(page)).to_have_count(1)
    send(page)
    answered(page)
    choose(page, png("blue"))
    expect(waiting(page)).to_have_count(1)
    page.get_by_label("Model").select_option("reads")
    expect(waiting(page)).to_have_count(0)
    expect(page.get_by_role("button", name="Add images")).to_be_hidden()
    send(page, "So?")
    answered(page, 2)
    assert asked() == [[MISSING], "Red.", "So?"]
    page.get_by_label("Model").select_option("sees")
    expect(waiting(page)).to_have_count(1)
