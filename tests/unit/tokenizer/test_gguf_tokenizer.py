import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numaserve.server.tokenizer import Tokenizer, load_tokenizer
from numaserve.server.tokenizer.pre_tokenizers import pre_tokenization
from numaserve.server.tokenizer.types import TokenizerError

from tests.support.tokenizer_builders import SAMPLES, demo_gguf, write_byte_level_gguf, write_sentencepiece_gguf

# What transformers' conversion leaves out: SmolLM cuts every digit off, also those outside ASCII.
OTHER_DIGITS = set("①②③½²٣")


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return load_tokenizer(demo_gguf())


def test_the_demo_model_takes_each_digit_by_itself(demo: Tokenizer) -> None:
    assert demo.encode("12 ①x") == [token for part in ("1", "2", " ", "①", "x") for token in demo.encode(part)]


@pytest.mark.parametrize("text", SAMPLES)
def test_the_demo_model_gives_the_text_back(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text)
    assert demo.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(demo.token_bytes, ids)) == text.encode()


def test_the_demo_model_has_its_special_tokens(demo: Tokenizer) -> None:
    assert demo.vocab_size == 49152
    assert demo.bos_token_id == 1
    assert {demo.token_text(i) for i in demo.eos_token_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert len(demo.special_token_ids) == 17
    assert demo.encode("<|im_start|>") == [1]
    assert demo.encode("a", add_special_tokens=False) == demo.encode("a")


def test_many_threads_can_tokenize_at_once(demo: Tokenizer) -> None:
    texts = [f"{sample} {n}" for n in range(50) for sample in SAMPLES]

    def there_and_back(text: str) -> str:
        return demo.decode(demo.encode(text), skip_special_tokens=False)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, texts)) == texts


def test_loading_a_tokenizer_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from pathlib import Path; from numaserve.server.tokenizer import load_tokenizer\n"
        "load_tokenizer(Path(sys.argv[1])); sys.exit(len({'torch', 'transformers'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, demo_gguf()], check=True)


def test_a_sentencepiece_file_can_leave_out_the_space_and_the_first_token(tmp_path: Path) -> None:
    flags = {"add_space_prefix": False, "add_bos_token": False}
    tokenizer = load_tokenizer(write_sentencepiece_gguf(tmp_path / "model.gguf", **flags))
    assert [tokenizer.token_text(i) for i in tokenizer.encode("the 123")] == ["t", "he", "▁", "123"]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_bytes_of_sentencepiece_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_sentencepiece_gguf(tmp_path / "model.gguf"))
    ids = tokenizer.encode("the 😀", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == " the 😀".encode()
    assert tokenizer.token_bytes(3 + 0x0A) == b"\n"
    assert tokenizer.token_text(3 + 0x0A) == "<0x0A>"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", "I|'|LL|Ġsay|Ġ12345|,|Ġok|!|Ċ|Ċ|CamelCase"),
        ("smollm", "I|'|LL|Ġsay|Ġ|1|2|3|4|5|,|Ġok|!|Ċ|Ċ|CamelCase"),
        ("refact", "I|'|LL|Ġsay|Ġ|1|2|3|4|5|,|Ġok|!|Ċ|Ċ|CamelCase"),
        ("lfm2", "I|'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|CamelCase"),
        ("llama-bpe", "I|'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|CamelCase"),
        ("glm4", "I|'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|CamelCase"),
        ("hunyuan-dense", "I|'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|CamelCase"),
        ("qwen2", "I|'LL|Ġsay|Ġ|1|2|3|4|5|,|Ġok|!ĊĊ|CamelCase"),
        ("tekken", "I|'LL|Ġsay|Ġ|1|2|3|4|5|,|Ġok|!ĊĊ|Camel|Case"),
        ("gpt-4o", "I'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|Camel|Case"),
        ("kimi-k2", "I'LL|Ġsay|Ġ|123|45|,|Ġok|!ĊĊ|Camel|Case"),
    ],
)
def test_each_pre_tokenizer_cuts_as_its_models_do(pre: str, pieces: str) -> None:
    cut = pre_tokenization(pre).build().pre_tokenize_str("I'LL say 12345, ok!\n\nCamelCase")
    assert [piece for piece, _ in cut] == pieces.split("|")


def test_deepseek_cuts_ideographs_off_and_keeps_letters_with_the_mark_before_them() -> None:
    text = "ok中文ok/usr x²"
    cut = pre_tokenization("deepseek-v3").build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == ["ok", "中文", "ok", "/usr", " x", "²"]


def test_kimi_cuts_ideographs_off_other_letters() -> None:
    text = "ok中文ok 日本の語/usr x/\n"
    cut = pre_tokenization("kimi-k2").build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == [
        *("ok", "中文", "ok", " ", "日本", "の", "語", "/usr", " x", "/\n"),
    ]


@pytest.mark.parametrize(
    "pre", ["default", "smollm", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "kimi-k2", "deepseek-v3"]
)
def test_a_byte_level_vocabulary_gives_any_text_back(tmp_path: Path, pre: str) -> None:
    tokenizer = load_tokenizer(write_byte_level_gguf(tmp_path / "model.gguf", pre))
    for text in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_qwen_composes_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_byte_level_gguf(tmp_path / "model.gguf", "qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


def test_llama3_adds_its_first_token_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    llama = load_tokenizer(write_byte_level_gguf(tmp_path / "llama.gguf", "llama-bpe"))
    qwen = load_tokenizer(write_byte_level_gguf(tmp_path / "qwen.gguf", "qwen2"))
    assert llama.encode("")[:1] == [llama.bos_token_id]
    assert qwen.encode("") == []


def test_an_unknown_pre_tokenizer_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"'klingon' .* is not supported; use the model's Hugging Face folder"):
        load_tokenizer(write_byte_level_gguf(tmp_path / "model.gguf", "klingon"))


def test_an_unknown_kind_of_tokenizer_is_named_with_the_known_ones(tmp_path: Path) -> None:
    known = "bert, gpt2, llama, t5"
    with pytest.raises(TokenizerError, match=f"'rwkv' is not supported; supported tokenizer models are {known}"):
        load_tokenizer(write_byte_level_gguf(tmp_path / "model.gguf", "gpt-2", model="rwkv"))
