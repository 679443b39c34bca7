"""The error of a load or an unload that did not succeed."""

from typing import Literal

# `invalid`: the name, the path or the files. `missing`: no such adapter. `full`: all places are taken. `busy`: the name
# is in another load. `forbidden`: the path. `not_ready`: no workers, or no answer of them in time. `failed`: a rank.
Kind = Literal["invalid", "missing", "full", "busy", "forbidden", "not_ready", "failed"]


class AdapterError(Exception):
    """A load or an unload that did not succeed; the message is meant for the client."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
