"""The one field of a body that a gateway looks at."""

from typing import Any

from numaserve.server.http.fields.types import Strict
from pydantic import model_validator


class NamesModel(Strict):
    """A body of any route: the model that it names. Its other fields are for that model's server."""

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_fields(cls, values: Any) -> Any:
        """Not to be noted: they are known to others."""
        return values
