"""The body of POST /abort_request."""

from __future__ import annotations

from numaserve.server.http.fields.types import ShortText, Strict, Unused, conflict
from pydantic import model_validator


class AbortRequest(Strict):
    """The requests to abort."""

    rid: ShortText | None = None
    """Id of the request to abort; required unless `abort_all` is true."""
    abort_all: bool | None = None
    """Abort all requests that used the same API key."""
    abort_message: Unused = None

    @model_validator(mode="after")
    def _one_or_all(self) -> AbortRequest:
        if not self.rid and not self.abort_all:
            raise conflict("rid", "set 'rid', or set 'abort_all' to true")
        return self
