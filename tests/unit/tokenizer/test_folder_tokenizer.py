import json
from pathlib import Path

import pytest
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import ChatTemplateError, TokenizerError
from numaserve.workers.interface.errors import OperatorError
from tokenizers import decoders, processors

from tests.support.tokenizer_builders import byte_level_backend, wordpiece_backend, write_folder

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}


def test_a_folder_tokenizes_as_its_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, tokenizer_config=CONFIG))
    assert tokenizer.encode("the <s>fox") == byte_level_backend().encode("the <s>fox").ids
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_ids == {1}
    assert tokenizer.special_token_ids == {0, 1}
    assert tokenizer.vocab_size == byte_level_backend().get_vocab_size()


@pytest.mark.parametrize(("generation", "expected"), [(7, {1, 7}), ([7, 8], {1, 7, 8}), (None, {1, 5})])
def test_every_configured_end_token_counts(tmp_path: Path, generation: object, expected: set[int]) -> None:
    model = {} if generation is not None else {"eos_token_id": 5}
    folder = write_folder(
        tmp_path, tokenizer_config=CONFIG, generation_config={"eos_token_id": generation}, config=model
    )
    assert load_tokenizer(folder).eos_token_ids == expected


def test_the_special_tokens_map_fills_what_the_configuration_leaves_out(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, special_tokens_map=CONFIG))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, {1})


def test_wordpiece_tokens_are_words_and_their_ends(tmp_path: Path) -> None:
    wordpiece_backend().save(str(write_folder(tmp_path) / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("The foxy", add_special_tokens=False)
    assert [tokenizer.token_text(each)[:2] == "##" for each in ids].count(True) > 0
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" the foxy"
    assert tokenizer.decode(tokenizer.encode("The foxy")) == "the foxy"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, frozenset())


@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("own", [True, False])
def test_the_configuration_decides_about_the_first_token(tmp_path: Path, wanted: bool | None, own: bool) -> None:
    backend = byte_level_backend()
    if own:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    write_folder(tmp_path, tokenizer_config={**CONFIG, "add_bos_token": wanted})
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    expected = own if wanted is None else wanted
    assert (tokenizer.encode("a")[0] == 0) is expected
    assert tokenizer.encode("a", add_special_tokens=False)[0] != 0


@pytest.mark.parametrize("add_bos_token", [False, None])
def test_a_token_that_the_tokenizer_puts_at_the_end_of_a_text_is_there(
    tmp_path: Path, add_bos_token: bool | None
) -> None:
    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    write_folder(tmp_path, tokenizer_config={**CONFIG, "add_bos_token": add_bos_token})
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a") == [*tokenizer.encode("a", add_special_tokens=False), 1]


def test_tokens_listed_only_in_the_configuration_are_added(tmp_path: Path) -> None:
    size = byte_level_backend().get_vocab_size()
    listed = {
        str(size): {"content": "<|end|>", "special": True},
        str(size + 1): {"content": "<think>", "special": False},
    }
    tokenizer = load_tokenizer(write_folder(tmp_path, tokenizer_config={**CONFIG, "added_tokens_decoder": listed}))
    assert tokenizer.encode("<|end|><think>") == [size, size + 1]
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.decode([size, size + 1]) == "<think>"


def test_listed_tokens_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer_config={"added_tokens_decoder": {"99999": {"content": "<x>"}}})
    with pytest.raises(TokenizerError, match="99999"):
        load_tokenizer(folder)


def test_a_truncating_tokenizer_json_does_not_truncate(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode("one two three")) == "one two three"


@pytest.mark.parametrize(
    "template",
    ["string {{ bos_token }}", [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "list <s>"}]],
)
def test_the_template_is_found_wherever_it_is(tmp_path: Path, template: object) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, tokenizer_config={**CONFIG, "chat_template": template}))
    assert tokenizer.render_chat(HELLO) in ("string <s>", "list <s>")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(tmp_path).render_chat(HELLO) == "file"


def test_the_template_of_an_older_file_goes_before_the_configuration_s(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer_config={**CONFIG, "chat_template": "configuration"})
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert load_tokenizer(folder).render_chat(HELLO) == "older"


@pytest.mark.parametrize(
    ("templates", "names"),
    [
        ([{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}], "'rag', 'tool_use'"),
        ([{"template": "t"}, 1], "none with a name"),
        ([{"name": "default"}], "'default'"),
    ],
)
def test_a_list_without_a_default_names_what_there_is(tmp_path: Path, templates: list[object], names: str) -> None:
    folder = write_folder(tmp_path, tokenizer_config={**CONFIG, "chat_template": templates})
    with pytest.raises(TokenizerError, match=f"their names are {names}.*--chat-template"):
        load_tokenizer(folder)
    assert load_tokenizer(folder, "given").render_chat(HELLO) == "given"


def test_a_folder_without_a_template_cannot_chat(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        load_tokenizer(write_folder(tmp_path)).render_chat(HELLO)


def test_a_folder_without_a_tokenizer_json_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"none of tokenizer\.json, tokenizer\.model and .*save_pretrained"):
        load_tokenizer(tmp_path)


def test_a_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="neither a model folder nor a"):
        load_tokenizer(tmp_path / "model.bin")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OperatorError, match=name):
        load_tokenizer(tmp_path)


def test_code_that_a_folder_offers_is_not_looked_at(tmp_path: Path) -> None:
    config = {**CONFIG, "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert load_tokenizer(write_folder(tmp_path, tokenizer_config=config)).encode("a")


@pytest.mark.parametrize(("decoder", "name"), [(decoders.CTC(), "CTC"), (None, "none")])
def test_a_decoder_of_another_kind_has_no_bytes_of_tokens(
    tmp_path: Path, decoder: decoders.Decoder | None, name: str
) -> None:
    definition = json.loads(byte_level_backend().to_str())
    definition["decoder"] = decoder and json.loads(decoder.__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("the fox") == byte_level_backend().encode("the fox").ids
    with pytest.raises(TokenizerError, match=rf"decoder \({name}\) does not say which bytes a generated token"):
        tokenizer.check_decoder()
    with pytest.raises(TokenizerError, match="does not say which bytes"):
        tokenizer.token_bytes(0)


def test_lone_surrogates_are_read_as_replacement_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path))
    text = json.loads('"a\\ud800b\\ud83d\\ude00"')
    assert tokenizer.decode(tokenizer.encode(text)) == "a\ufffdb😀"
