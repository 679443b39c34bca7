import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.types import ChatTemplateError

from tests.support.tokenizer_builders import byte_level_backend, wrap

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello"}]

MakeTemplate = Callable[..., ChatTemplate]


@pytest.fixture
def make() -> Iterator[MakeTemplate]:
    made: list[ChatTemplate] = []

    def make_template(source: str, **limits: Any) -> ChatTemplate:
        made.append(ChatTemplate(source, **limits))
        return made[-1]

    yield make_template
    for template in made:
        template.close()


def test_the_template_is_ready_for_another_conversation(make: MakeTemplate) -> None:
    template = make("{{ messages[0]['content'] }}")
    texts = [template.render({"messages": [{"content": text}]}) for text in ("one", "two\n", "é" * 100_000)]
    assert texts == ["one", "two\n", "é" * 100_000]


def test_a_template_may_write_half_a_character(make: MakeTemplate) -> None:
    assert make("{{ '\\ud800' }}").render({}) == "\ud800"


def test_a_template_can_refuse_the_messages(make: MakeTemplate) -> None:
    template = make("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render({"messages": HELLO})


def test_the_date_can_be_asked_for(make: MakeTemplate) -> None:
    assert make("{{ strftime_now('%Y') }}").render({}).startswith("20")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ self._TemplateReference__context }}{{ self.__init__.__globals__['sys'].exit() }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_cannot_reach_the_interpreter(make: MakeTemplate, source: str) -> None:
    template = make(source)
    with pytest.raises(ChatTemplateError, match=r"unsafe|no loader|undefined|no attribute"):
        template.render({"messages": HELLO})


@pytest.mark.parametrize("source", ["{{ '{0.__class__}'.format(1) }}", "{{ ('{0.__doc__}'|attr('format'))(range) }}"])
def test_a_format_string_shows_nothing_of_the_interpreter(make: MakeTemplate, source: str) -> None:
    assert make(source).render({}) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 7 ** 30000000 % 9 }}",
        "{{ range(99999) | select('in', range(99999) | map('string') | list) | list }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_that_runs_for_ever_is_stopped(make: MakeTemplate, source: str) -> None:
    template = make(source, cpu_seconds=0.2)
    for _ in range(2):  # the second conversation is answered too
        with pytest.raises(ChatTemplateError, match=r"ran for more than 0\.2 s"):
            template.render({"messages": HELLO})


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "characters"),
        ("{{ 'x' * 10 ** 10 }}", "memory"),
        ("{{ '%1000000000d' % 1 }}", "memory"),
        ("{{ 'x'.ljust(10 ** 10) }}", "memory"),
        (
            "{% set s = namespace(t='x') %}{% for i in range(60) %}{% set s.t = s.t ~ s.t %}{% endfor %}{{ s.t }}",
            "memory",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "RecursionError|killed"),
        ("{% if %}", "[Ee]xpected"),
    ],
)
def test_a_template_that_writes_or_keeps_too_much_is_stopped(make: MakeTemplate, source: str, complaint: str) -> None:
    template = make(source)
    with pytest.raises(ChatTemplateError, match=complaint):
        template.render({"messages": HELLO})


def test_arguments_that_are_not_json_are_refused(make: MakeTemplate) -> None:
    nested: list[object] = []
    for _ in range(sys.getrecursionlimit() * 10):
        nested = [nested]
    for content in (object(), nested):
        with pytest.raises(ChatTemplateError, match="cannot be passed"):
            make("x").render({"messages": content})


def test_the_process_can_be_killed_between_two_conversations(make: MakeTemplate) -> None:
    template = make("{{ messages[0]['content'] }}")
    assert template.render({"messages": HELLO}) == "Hello"
    os.kill(template._worker._process.pid, signal.SIGKILL)
    assert template.render({"messages": HELLO}) == "Hello"


def test_the_process_goes_with_the_template(make: MakeTemplate) -> None:
    template = ChatTemplate("x")
    process = template._worker._process._popen
    del template
    assert process.returncode == -signal.SIGKILL


def test_the_process_does_not_outlive_a_server_that_is_killed() -> None:
    code = (
        "import os, signal; from numaserve.server.tokenizer.chat_template import ChatTemplate\n"
        "t = ChatTemplate('x'); t.render({}); print(t._worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    # The child inherits the error output, so this returns only when both have ended.
    server = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert server.returncode == -signal.SIGKILL
    child = Path("/proc", server.stdout.decode().strip(), "cmdline")
    assert not child.exists() or not child.read_bytes()  # gone, or a zombie that waits for init


def test_many_threads_can_render_at_once(make: MakeTemplate) -> None:
    template = make("{{ messages }}")
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: template.render({"messages": n}), range(200)))
    assert texts == [str(n) for n in range(200)]


def test_a_conversation_is_written_with_the_template_s_own_special_tokens() -> None:
    tokenizer = wrap(
        byte_level_backend(), "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ enable_thinking }}"
    )
    text = tokenizer.render_chat(HELLO, arguments={"enable_thinking": False})
    assert text == "<s>Hello</s>False"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids) == "HelloFalse"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "raise_exception", "range", "own"]
)
def test_an_argument_changes_nothing_that_the_server_the_template_or_the_language_sets(name: str) -> None:
    source = (
        "{% set own = 1 %}{{ bos_token }}{{ messages[0].content }}{{ tools }}{{ add_generation_prompt }}{{ eos_token }}"
        "{% for i in range(2) %}{{ i }}{% endfor %}{{ own }}{% if false %}{{ raise_exception('x') }}{% endif %}"
    )
    tokenizer = wrap(byte_level_backend(), source)
    assert tokenizer.render_chat(HELLO, arguments={name: "mine"}) == tokenizer.render_chat(HELLO)


def test_an_argument_that_the_template_does_not_have_changes_nothing() -> None:
    tokenizer = wrap(byte_level_backend(), "x{{ known }}")
    assert tokenizer.render_chat(HELLO, arguments={"known": 1, "self": 2, "unknown": 3}) == "x1"


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        wrap(byte_level_backend()).render_chat(HELLO)
