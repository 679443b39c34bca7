"""A chat template that the operator gives instead of the model's own."""

import os
from pathlib import Path

import pytest
from numaserve.server.service.model.chat_template_file import load_tokenizer_with
from numaserve.server.tokenizer import own_chat_template
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.workers.interface.errors import OperatorError

from tests.support.tokenizer_builders import write_byte_level_gguf, write_folder

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_folder(tmp_path, tokenizer_config={"chat_template": "the model's"})


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return tmp_path / "mine.jinja"


def rendered(tokenizer: Tokenizer) -> str:
    return tokenizer.render_chat(HELLO)


def test_it_replaces_the_model_s(model: Path, template: Path) -> None:
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} é")
    assert rendered(load_tokenizer_with(model, template)) == "[user] Hello é"
    assert rendered(load_tokenizer_with(model, None)) == "the model's"


def test_it_replaces_that_of_a_gguf_file(tmp_path: Path, template: Path) -> None:
    template.write_text("mine")
    path = write_byte_level_gguf(tmp_path / "model.gguf", "smollm", chat_template="the file's")
    assert rendered(load_tokenizer_with(path, template)) == "mine"


def test_it_need_not_take_every_conversation(model: Path, template: Path) -> None:
    template.write_text("{{ raise_exception('give me a document') }}")
    load_tokenizer_with(model, template)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% for %}", "line 2: "),
        ("{{ messages | nonsense }}", "line 1: No filter named 'nonsense'"),
        ("{% if messages %}", "line 1: Unexpected end of template"),
    ],
)
def test_one_that_does_not_compile_is_the_operator_s_to_mend(
    model: Path, template: Path, source: str, message: str
) -> None:
    template.write_text(source)
    with pytest.raises(OperatorError, match=message) as caught:
        load_tokenizer_with(model, template)
    assert str(template) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["chat_template.json", "tokenizer_config.json"])
def test_one_of_the_model_s_that_does_not_compile_is_found_at_the_start(model: Path, template: Path, file: str) -> None:
    (model / file).write_text('{"chat_template": "{% if messages %}"}')
    with pytest.raises(
        OperatorError, match=r"line 1: Unexpected end of template.*Name another template with --chat-template"
    ):
        load_tokenizer_with(model, None)
    template.write_text("mine")
    assert rendered(load_tokenizer_with(model, template)) == "mine"


def test_a_file_that_cannot_be_read_is_told(model: Path, template: Path) -> None:
    with pytest.raises(OperatorError, match=r"mine\.jinja: cannot be read \(No such file"):
        load_tokenizer_with(model, template)
    with pytest.raises(OperatorError, match="Is a directory"):
        load_tokenizer_with(model, model)
    template.write_bytes(b"\xff")
    with pytest.raises(OperatorError, match="not UTF-8"):
        load_tokenizer_with(model, template)
    template.write_bytes(b"x" * (4 * 2**20 + 1))
    with pytest.raises(OperatorError, match="larger than"):
        load_tokenizer_with(model, template)
    template.unlink()
    os.mkfifo(template)
    with pytest.raises(OperatorError, match="not a regular file"):
        load_tokenizer_with(model, template)


def test_a_model_s_own_template_is_found_without_its_vocabulary(model: Path, tmp_path: Path) -> None:
    assert own_chat_template(model) == "the model's"
    (model / "tokenizer.json").unlink()
    assert own_chat_template(model) == "the model's"
    (model / "tokenizer_config.json").unlink()
    assert own_chat_template(model) is None
    path = write_byte_level_gguf(tmp_path / "with.gguf", "smollm", chat_template="the file's")
    assert own_chat_template(path) == "the file's"
    assert own_chat_template(write_byte_level_gguf(tmp_path / "without.gguf", "smollm")) is None
