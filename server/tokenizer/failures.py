"""Errors of the tokenizer library, as errors of ours.

The library is written in Rust, and much of what it cannot do is a panic there: an expression of tokenizer.json that
backtracks past a limit on some text, an index that a file got wrong. Python sees a panic as `PanicException`, which is
no `Exception`: it passes every handler of the server. Its class cannot be imported, only recognised by its module.

Before Python hears of a panic the library has written it to standard error, and no call of the library prevents that.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numaserve.server.tokenizer.types import TokenizationError, TokenizerError
from numaserve.workers.interface.errors import OperatorError

_MAX_REASON = 200  # characters; a panic may quote the text that it happened on
_P = ParamSpec("_P")
_R = TypeVar("_R")


def is_panic(error: BaseException) -> bool:
    """Whether the library gave up on `error`."""
    return type(error).__module__ == "pyo3_runtime"


def while_serving(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, raising `TokenizationError` where the library fails."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            # The library's own errors are plain `Exception`; those of a narrower type are mistakes of its caller.
            if type(error) is Exception or is_panic(error):
                message = f"the model's tokenizer fails on this input: {error}"
                raise TokenizationError(message[:_MAX_REASON]) from error
            raise

    return call


def while_loading(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, whose first argument is the path of the model, raising `TokenizerError` for whatever an unsound file
    leads to."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, OperatorError) and not isinstance(error, TokenizationError):
                raise
            if isinstance(error, Exception) or is_panic(error):
                reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
                message = f"the tokenizer of {args[0]} cannot be used ({reason}); use another copy of the model"
                raise TokenizerError(message) from error
            raise

    return call
