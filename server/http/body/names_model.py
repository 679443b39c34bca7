"""The only field of a body that a gateway reads."""

from typing import Any

from numaserve.server.http.fields.types import Strict
from pydantic import model_validator


class NamesModel(Strict):
    """A body of any route: the model that it names. The other fields are for that model's server."""

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_fields(cls, values: Any) -> Any:
        """Skip the record of unknown fields, because the model's server knows them."""
        return values
