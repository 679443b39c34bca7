"""The process that reads answers by one response template until its input ends; `ResponseTemplate` starts it.

It reads questions and writes answers as JSON. The question null only compiles the template.
"""

from typing import Any

import msgspec
from numaserve.server.answers.response_template.answer import answer_of
from numaserve.server.answers.response_template.definition import template_of
from numaserve.server.answers.response_template.errors import BadTemplate, Unreadable
from numaserve.server.answers.response_template.types import Question, finder_of
from numaserve.server.confined.work import Complaint, Work, serve


def _reader(config: dict[str, Any]) -> Work:
    try:
        template, special = template_of(config["template"]), finder_of(config["special"])
    except BadTemplate as error:
        raise Complaint(str(error)) from error

    def read(given: dict[str, Any] | None) -> str:
        if given is None:
            return ""
        try:
            question = msgspec.convert(given, Question)
            return msgspec.json.encode(answer_of(template, question, special if question.hides else None)).decode()
        except Unreadable as error:
            raise Complaint("a required field is missing") from error

    return read


def _read_once() -> None:
    """Trigger the first-use initialization of libraries while files can still be opened."""
    spec = {"start_anchor": "<", "fields": {"content": {"open_pattern": r"(?i)\w\s", "content": "json"}}}
    work = _reader({"template": spec, "special": ["é"]})
    work({"prompt": "", "text": "é []", "tools": {}, "calls": True, "thoughts": True})


def main() -> None:
    """Serve answers until the input ends."""
    serve(_read_once, _reader)


if __name__ == "__main__":
    main()
