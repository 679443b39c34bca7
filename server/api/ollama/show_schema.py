"""The body of POST /api/show."""

from __future__ import annotations

from numaserve.server.api.fields import ShortText, Strict, Unused, conflict
from pydantic import model_validator


class OllamaShowRequest(Strict):
    """The model to be shown."""

    model: ShortText | None = None
    """A served name; another one is a 404."""
    name: ShortText | None = None
    """The older name of `model`."""
    verbose: Unused = None
    system: Unused = None
    template: Unused = None
    options: Unused = None

    @model_validator(mode="after")
    def _a_model_is_named(self) -> OllamaShowRequest:
        if not (self.model or self.name):
            raise conflict("model", "'model' is needed")
        return self
