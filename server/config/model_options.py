"""The configuration keys of a model's settings, made from workers/interface/settings.py."""

from typing import Annotated, Any

from numaserve.workers.interface.settings import MODEL_OPTIONS, ModelOption
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, create_model


def _checked(defined: ModelOption) -> Any:
    needed = defined.option.needs

    def check(value: object, info: ValidationInfo) -> object:
        if value and needed is not None and info.data.get(needed) is None:
            raise ValueError(f"needs '{needed}': set '{needed}' too, or leave out '{info.field_name}'")
        return value

    return Annotated[defined.type, AfterValidator(check)]


def _field(defined: ModelOption) -> Any:
    option = defined.option
    return Field(defined.default, ge=option.at_least, le=option.at_most, description=option.description)


_FIELDS: dict[str, Any] = {name: (_checked(each), _field(each)) for name, each in MODEL_OPTIONS.items()}

# The model options, validated like the server's own keys. An option comes after the option that it requires.
ModelKeys: type[BaseModel] = create_model("ModelKeys", __config__=ConfigDict(frozen=True, extra="forbid"), **_FIELDS)
