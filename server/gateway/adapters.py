"""The LoRA adapters of the models: their names, and the models that they belong to.

The gateway keeps no list of adapters that were loaded later: a model process is the only one that knows them, and loses
them when it ends. The gateway asks the model processes instead, which answer within a millisecond.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from numaserve.server.gateway.asking import Question, answers
from numaserve.server.gateway.bodies import decoded
from numaserve.server.gateway.models.fleet import Fleet
from numaserve.server.generation.served_names import LATEST
from numaserve.server.http.errors import bad_request, model_not_found

ADAPTER_ROUTES = frozenset(
    {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter"}
)
_LIST = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "headers": []}


class _Order(msgspec.Struct):
    """The fields of a load or an unload that the gateway reads."""

    lora_name: str = ""
    model: str | None = None


class _Listed(msgspec.Struct):
    id: str
    parent: str | None = None
    root: str = ""


class _List(msgspec.Struct):
    data: list[_Listed]


_orders, _lists = msgspec.json.Decoder(_Order), msgspec.json.Decoder(_List)


@dataclass(frozen=True)
class Adapters:
    """The adapters of the models of `fleet`. `at_start` has the paths of adapters that a model process loads when it
    starts, by model and name. Only models that have memory for adapters are in it."""

    fleet: Fleet
    at_start: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def named_at_start(self, name: str) -> str | None:
        """Return the model whose process loads an adapter of that name when it starts; None if there is none."""
        return next((model for model, adapters in self.at_start.items() if name in adapters), None)

    async def model_of(self, name: str) -> str | None:
        """Return the model of an adapter, loaded or not; None if no model has one of that name."""
        for spelt in dict.fromkeys((name, name.removesuffix(LATEST))):
            model = self.named_at_start(spelt)
            if model is not None:
                return model
        loaded = await self._loaded()
        names = {name, name.removesuffix(LATEST)}
        return next((model for model, adapters in loaded.items() if not names.isdisjoint(adapters)), None)

    async def listed(self) -> dict[str, tuple[str, str]]:
        """Return the model and the path of each adapter, by name: those that are loaded, and those at the start of
        models that are not loaded."""
        found = {**self.at_start, **await self._loaded()}
        return {name: (model, path) for model, adapters in found.items() for name, path in adapters.items()}

    async def _loaded(self) -> dict[str, dict[str, str]]:
        """Return the paths of the adapters of each model that answers, by name."""
        sessions = self.fleet.open_sessions()
        asked = {model: sessions[model] for model in self.at_start if model in sessions}
        found: dict[str, dict[str, str]] = {}
        for answer in await answers(asked.values(), Question(_LIST, [])):
            if answer.status_code != 200:  # the model process is ending
                continue
            listed = _lists.decode(answer.body).data
            adapters = {each.id: each.root for each in listed if each.parent is not None}
            found |= {each.id: adapters for each in listed if each.id in asked}
        return found


async def ordered_model(adapters: Adapters, body: bytes, names: Mapping[str, str], default: str) -> str:
    """Return the model of a load or an unload of an adapter: the one that the body names, the one that has an adapter
    of that name, or the `default`.

    Raises `ApiError` for an unknown model, and for a name that another model has.
    """
    order = decoded(_orders, body)
    owner = names.get(order.lora_name) or await adapters.model_of(order.lora_name)
    model = (owner or default) if order.model is None else names.get(order.model)
    if model is None:
        raise model_not_found(order.model or "", names)
    if owner not in (None, model):
        message = f"The name '{order.lora_name}' belongs to the model '{owner}'. Choose another 'lora_name'."
        raise bad_request(message, "lora_name")
    return model
