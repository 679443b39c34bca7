"""Texts become the tokens, and conversations the texts, that transformers makes of the same model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers as hf
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.chat_template import ChatTemplate
from transformers.utils.chat_template_utils import render_jinja_template

from tests.support.tokenizer_builders import (
    SAMPLES,
    demo_gguf,
    unigram_backend,
    wordpiece_backend,
    write_folder,
    write_sentencepiece_gguf,
)

# What transformers' conversion leaves out: SmolLM cuts every digit off, also those outside ASCII.
OTHER_DIGITS = set("①②③½²٣")
HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]


def converted(path: Path) -> hf.PreTrainedTokenizerBase:
    """transformers' own conversion of a GGUF file."""
    return hf.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.slow
def test_the_demo_model_tokenizes_as_in_transformers() -> None:
    tokenizer, oracle = load_tokenizer(demo_gguf()), converted(demo_gguf())
    for sample in SAMPLES:
        text = "".join(character for character in sample if character not in OTHER_DIGITS)
        assert tokenizer.encode(text) == oracle.encode(text)
    messages: list[dict[str, object]] = [{"role": "user", "content": "Name the capital of France."}]
    ids = tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)
    assert ids == oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma3"])
def test_a_sentencepiece_vocabulary_tokenizes_as_in_transformers(tmp_path: Path, architecture: str) -> None:
    path = write_sentencepiece_gguf(tmp_path / "model.gguf", architecture)
    tokenizer, oracle = load_tokenizer(path), converted(path)
    for text in (*SAMPLES, "the then 123 in the def", "a<|assistant|> the<think>x"):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_a_folder_tokenizes_as_in_transformers(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": "</s>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}",
        },
    )
    tokenizer, oracle = load_tokenizer(folder), hf.AutoTokenizer.from_pretrained(folder)
    for text in SAMPLES:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
    ids = tokenizer.encode(tokenizer.render_chat(HELLO), add_special_tokens=False)
    assert ids == oracle.apply_chat_template(HELLO, return_dict=False)


@pytest.mark.parametrize(
    ("backend", "special"),
    [
        (wordpiece_backend, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}),
        (unigram_backend, {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>"}),
    ],
)
def test_an_encoder_s_folder_tokenizes_as_in_transformers(
    tmp_path: Path, backend: Callable[[], tokenizers.Tokenizer], special: dict[str, str]
) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    write_folder(tmp_path, tokenizer_config=config)
    backend().save(str(tmp_path / "tokenizer.json"))
    tokenizer, oracle = load_tokenizer(tmp_path), hf.AutoTokenizer.from_pretrained(tmp_path)
    around = oracle.encode("")
    assert len(around) == 2
    for text in (*SAMPLES, "A word" + 300 * "y"):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert [ids[0], ids[-1]] == around
        assert tokenizer.encode(text, add_special_tokens=False) == ids[1:-1]
    assert tokenizer._confined is None


def test_a_usual_template_writes_what_transformers_writes() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "<b>&\"'é😀"}]
    source = (
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
        "{{ messages | tojson }}{% generation %}x{% endgeneration %}{% for i in range(9) %}{% break %}{% endfor %}"
    )
    rendered = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)[0]
    template = ChatTemplate(source)
    try:
        assert template.render({"messages": messages, "add_generation_prompt": True}) == rendered[0]
    finally:
        template.close()
