"""The readers of sources find each text that is shown, and nothing else."""

from collections.abc import Iterable

import pytest

from tests.documentation.texts.readers import cpp_texts, markup_texts, python_texts, script_texts
from tests.documentation.texts.sources import is_text


def texts(found: Iterable[tuple[int, str]]) -> list[str]:
    return [text for _, text in found if is_text(text)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('x = "one two three four"', ["one two three four"]),
        ('x = "one two" " three four"', ["one two three four"]),
        ('x = f"one {n} two three {m!r} four"', ["one {} two three {} four"]),
        ('x = "one two three \'" + name + "\' four"', ["one two three '{}' four"]),
        ('x = f"one two {n}" + (f" three {m} four" if m else "")', []),
        (
            "x = f\"one two three four {'five six seven eight' if n else m}\"",
            ["one two three four {}", "five six seven eight"],
        ),
        ('def f():\n    "one two three four"\n    return "five six seven eight"', ["five six seven eight"]),
        ('async def f() -> "dict of many other things":\n    pass', []),
        ('x: "dict of many other things" = 1', []),
        ('x: Annotated[str, Option(help="one two three four")] = ""', ["one two three four"]),
        ('x = re.compile("one two three four")', []),
        ('x = name.split("one two three four")', ["one two three four"]),
        ('x = "one two three four".split()', []),
        ("x = 1 + 2", []),
    ],
)
def test_python(code: str, found: list[str]) -> None:
    assert sorted(texts(python_texts(code))) == sorted(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('throw Error("one two three four");', ["one two three four"]),
        ('throw Error("one two "\n  "three four");', ["one two three four"]),
        ('throw Error("one two " + std::to_string(f(a, b)) + " three four");', ["one two {} three four"]),
        ('throw Error(std::string("one two ") + name + " three four");', ["one two {} three four"]),
        ('throw Error(what + ": one two three four " + name);', ["{}: one two three four {}"]),
        ('throw Error("one two three \'" + name + "\'; four {five}");', ["one two three '{}'; four {five}"]),
        ('throw Error("one \\"two\\" three four");', ['one "two" three four']),
        ('out << "one two " << count << " three four" << end;', ["one two {} three four{}"]),
        (
            'require(a, "one two three four"); require(b, "five six seven eight");',
            ["one two three four", "five six seven eight"],
        ),
        ('return a ? "one two three four" : "five six seven eight";', ["one two three four", "five six seven eight"]),
        ('m.def("name", &name, nb::arg("team"), "One two three four.");', []),
        ('m.def("name", [](int a) { return a; }, nb::arg("a"), "One two three four.");', []),
        ('m.def("name", [](int a) { if (a) throw Error("one two three four"); });', ["one two three four"]),
        ('nb::class_<Vector>(m, "Vector", "One two three four.");', []),
        ('static_assert(sizeof(int) == 4, "one two three four");', []),
        ('#include "one two three four"\n', []),
        ('// "one two three four"\n/* "one two\nthree four" */', []),
        ("int n = 1'000'000; char c = '\"'; throw Error(\"one two three four\");", ["one two three four"]),
    ],
)
def test_cpp(code: str, found: list[str]) -> None:
    assert texts(cpp_texts(code)) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('const a = "one two three four";', ["one two three four"]),
        ("const a = 'one two three four';", ["one two three four"]),
        ("const a = `one ${n} two three four`;", ["one {} two three four"]),
        ("const a = `one two ${f({ a: `x${1}` })} three four`;", ["one two {} three four"]),
        (
            "const a = `one two three four ${n ? 'five six seven eight' : ''}`;",
            ["one two three four {}", "five six seven eight"],
        ),
        ('import { one } from "./one two three four.js";', []),
        ('// "one two three four"\n/* `one two three four` */', []),
        ('const a = /`[^`/]*"/; const b = "one two three four";', ["one two three four"]),
        ('const a = n / 2; const b = "one two three four"; const c = m / 2;', ["one two three four"]),
        ('return /"/.test(a) ? "one two three four" : b;', ["one two three four"]),
    ],
)
def test_scripts(code: str, found: list[str]) -> None:
    assert texts(script_texts(code)) == found


def test_markup() -> None:
    page = '<p title="One two three four">Five six\n  seven eight</p><style>a { color: red }</style>'
    assert texts(markup_texts(page)) == ["One two three four", "Five six seven eight"]


def test_lines_are_those_of_the_file() -> None:
    assert [*python_texts('\n\nx = "a"')] == [(3, "a")]
    assert [*cpp_texts('// "c"\n\nf("a",\n  "b");')] == [(3, "a"), (4, "b")]
    assert [*script_texts('\nf("a",\n `b\n ${"c"}`)')] == [(2, "a"), (3, "b\n {}"), (4, "c")]


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
    assert is_text("set --kv-cache-dtype int8 or raise --memory-gib")
