"""The bodies of POST /api/show and /api/pull."""

from __future__ import annotations

from typing import Self

from numaserve.server.http.fields.types import ShortText, Strict, Unused, conflict
from pydantic import model_validator


class _NamedModel(Strict):
    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    name: ShortText | None = None
    """Older name of `model`."""

    @model_validator(mode="after")
    def _a_model_is_named(self) -> Self:
        if not (self.model or self.name):
            raise conflict("model", "'model' is needed")
        return self

    @property
    def named(self) -> str:
        """The name, in either field."""
        return self.model or self.name or ""


class OllamaShowRequest(_NamedModel):
    """The model to show."""

    verbose: Unused = None
    system: Unused = None
    template: Unused = None
    options: Unused = None


class OllamaPullRequest(_NamedModel):
    """The model to pull; it must be the served model."""

    stream: bool | None = None
    """Stream the response as lines of JSON; true unless set."""
    insecure: Unused = None
    username: Unused = None
    password: Unused = None
