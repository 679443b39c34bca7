"""What can be wrong with a response template, and with an answer that it is to read."""


class BadTemplate(Exception):
    """The template is none that is known; the message says why."""


class Unreadable(Exception):
    """The text is not what the template has for it. Without the text: errors are written to the log."""


def expect(holds: bool, message: str) -> None:
    """Raise `BadTemplate` with `message` unless it `holds`."""
    if not holds:
        raise BadTemplate(message)
