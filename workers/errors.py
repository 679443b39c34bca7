"""The one error type that reaches an operator without a traceback."""


class OperatorError(Exception):
    """Something the operator can mend: a missing file, too little memory, an impossible option.

    The message is one line that says what is wrong and what to change. The command prints it without a traceback and
    ends with exit status 2.
    """
