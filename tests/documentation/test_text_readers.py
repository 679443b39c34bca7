"""The readers of sources find each text that is shown, and nothing else."""

import pytest

from tests.documentation.texts import is_text
from tests.documentation.texts.readers import literals, markup_texts, python_texts, values

ONE, FIVE = "one two three four", "five six seven eight"


@pytest.mark.parametrize(
    ("reader", "source", "found"),
    [
        (python_texts, f'x = "{ONE}"', [ONE]),
        (python_texts, 'x = "one two" " three four"', [ONE]),
        (
            python_texts,
            f"x = f\"one {{n}} two three {{'{FIVE}' if n else m!r}} four\"",
            ["one {} two three {} four", FIVE],
        ),
        (python_texts, f'def f():\n    "{ONE}"\n    return "{FIVE}"', [FIVE]),
        (python_texts, f'x: Annotated[str, Option(help="{ONE}")] = ""', [ONE]),
        (literals, f'throw Error("{ONE}", "{FIVE}");', [ONE, FIVE]),
        (literals, 'throw Error("one \\"two\\" "\n  "three four");', ['one "two" three four']),
        (literals, f"int n = 1'000'000; char c = '\"'; throw Error(\"{ONE}\");", [ONE]),
        (literals, f'// "{ONE}"\n/* `{ONE}`\n"{ONE}" */ x("{FIVE}")', [FIVE]),
        (literals, f"const a = '{ONE}', b = `{FIVE}`;", [ONE, FIVE]),
        (literals, "const a = `one ${n} two three four`;", ["one {} two three four"]),
        (literals, f'const a = /`[^`/]*"/, b = "{ONE}", c = n / 2, d = "{FIVE}";', [ONE, FIVE]),
        (markup_texts, f'<p title="{ONE}">{FIVE}</p><style>a {{ color: red }}</style>', [ONE, FIVE]),
        (values, f"[Unit]\nDescription={ONE}\nAfter=network.target", [ONE]),
    ],
)
def test_texts_of_a_source(reader: object, source: str, found: list[str]) -> None:
    assert sorted(text for text in reader(source) if is_text(text)) == sorted(found)  # type: ignore[operator]


@pytest.mark.parametrize(
    "code",
    [
        "three words only",
        "one_name_of_five_words",
        "text/html; charset=utf-8 and so on",
        "#include <one> two three four",
        "<p>one two three four</p>",
        "<|im_start|>system one two three four",
        "one|two three four",
        r"one \d two three four",
        "(?:one) two three four",
        "Content-Type: application/json",
        "require-trusted-types-for 'script'",
        "--kv-cache-dtype int8",
    ],
)
def test_code_is_no_text(code: str) -> None:
    assert not is_text(code)


def test_a_message_with_options_and_values_is_a_text() -> None:
    assert is_text("--tp {} is less than the {} usable NUMA nodes: node {} stays idle")
