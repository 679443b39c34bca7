"""Errors of response templates, and of answers that do not follow one."""


class BadTemplate(Exception):
    """The response template is not supported; the message says why."""


class Unreadable(Exception):
    """The text does not match the template. The error omits the text, because errors are logged."""


def expect(holds: bool, message: str) -> None:
    """Raise `BadTemplate` with `message` unless it `holds`."""
    if not holds:
        raise BadTemplate(message)
