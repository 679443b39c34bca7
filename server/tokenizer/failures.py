"""Errors of the tokenizer library, converted to errors of this server.

The library is written in Rust, and many of its failures are panics: a regular expression of tokenizer.json that exceeds
the backtracking limit on some text, or an index that is wrong in a file. Python receives a panic as `PanicException`,
which is no `Exception` and passes every handler of the server. Its class cannot be imported, only recognised by its
module.

The library writes a panic to standard error before Python receives it, and no call of the library prevents that.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numaserve.server.tokenizer.types import TokenizationError, TokenizerError
from numaserve.workers.interface.errors import OperatorError

_MAX_REASON = 200  # characters; a panic may quote the text that caused it
_P = ParamSpec("_P")
_R = TypeVar("_R")


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a panic of the library."""
    return type(error).__module__ == "pyo3_runtime"


def while_serving(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `function`, changed to raise `TokenizationError` if the library fails."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            # The library's own errors are plain `Exception`; narrower types are mistakes of the caller.
            if type(error) is Exception or is_panic(error):
                message = f"the model's tokenizer fails on this input: {error}"
                raise TokenizationError(message[:_MAX_REASON]) from error
            raise

    return call


def while_loading(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return `function`, changed to raise `TokenizerError` for any failure caused by an unsound file.

    The first argument of `function` is the path of the model.
    """

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
