"""Readers of calls that are JSON objects, and of arguments in JSON."""

import json
from dataclasses import dataclass

from numaserve.server.answers.tools.json_cutter import copy_json, read_json, read_string
from numaserve.server.answers.tools.scanner import Markers, NotACall, Scanner, Steps
from numaserve.server.answers.tools.sink import Sink

NO_ARGUMENTS = "{}"


def read_arguments(scanner: Scanner, sink: Sink, ends: Markers) -> Steps[bool]:
    """Read the arguments of the call that has begun, and return whether they were JSON.

    If they are not, they are all text up to the first of `ends`, which is consumed, or up to the end of the text: the
    client sees the model's text. Arguments of null become an empty object. Arguments that are a string are replaced by
    its content, since some models put the text of an object there.
    """
    first = yield from scanner.peek()
    whole: list[str] = []
    complete = yield from copy_json(scanner, whole.append if first in {'"', "n"} else sink.arguments)
    if whole:
        text = "".join(whole)
        sink.arguments(meant(text) if complete else text)
    if not complete:
        yield from scanner.until(ends, sink.arguments)
    scanner.forget()
    return complete


def meant(text: str) -> str:
    """Return the arguments that a JSON value stands for."""
    if text[0] not in '"n':
        return text
    value = json.loads(text)
    return value if isinstance(value, str) and value else NO_ARGUMENTS


@dataclass(frozen=True)
class Keys:
    """The names of the members of a call in JSON. The first of `arguments` is the name that is written."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")


@dataclass
class CallReader:
    """Reads calls that are objects. `known` requires that the request has a tool of that name."""

    scanner: Scanner
    sink: Sink
    keys: Keys
    ends: Markers
    known: bool

    def read(self) -> Steps[bool]:
        """Read a call and return whether its arguments were JSON; if not, the end of the call has been consumed with
        them.

        Raises `NotACall` if it breaks elsewhere: the scanner's record then holds the whole text unless the call has
        begun.
        """
        name = ""
        held: str | None = None  # arguments that came before the name
        begun = False
        yield from self.scanner.expect("{")
        yield from self.scanner.space()
        more = (yield from self.scanner.one_of("}")) is None
        while more:
            key = yield from self._key()
            if key == self.keys.name and not name:
                name = yield from self._name()
            elif key in self.keys.arguments and name and not begun:
                begun = True
                self.sink.begin_call(name)
                if not (yield from read_arguments(self.scanner, self.sink, self.ends)):
                    return False
            elif key in self.keys.arguments and held is None and not begun:
                held = meant((yield from read_json(self.scanner)))
            else:
                yield from read_json(self.scanner)
            more = (yield from self._separator(",", "}")) == ","
            yield from self.scanner.space()
        if not name:
            raise NotACall
        if not begun:
            self.sink.begin_call(name)
            self.sink.arguments(held or NO_ARGUMENTS)
        self.scanner.forget()
        return True

    def _key(self) -> Steps[str]:
        key = yield from read_string(self.scanner)
        yield from self._separator(":")
        yield from self.scanner.space()
        return key

    def _name(self) -> Steps[str]:
        name = yield from read_string(self.scanner)
        if not name or (self.known and name not in self.sink.tools):
            raise NotACall
        return name

    def _separator(self, *options: str) -> Steps[str]:
        yield from self.scanner.space()
        return (yield from self.scanner.expect(*options))
