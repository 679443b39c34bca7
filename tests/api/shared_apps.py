"""Applications that tests share: making one takes longer than most tests of it do."""

import gc
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, is_dataclass
from inspect import isfunction
from types import ModuleType

from fastapi import FastAPI
from fastapi.routing import APIRoute
from numaserve.server.app.application import ApiContext, create_app
from numaserve.server.http.body.route import Bodies
from numaserve.server.surfaces.openai.responses.store import ResponseStore
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

# The fields of a context that an application reads at each request alone, or means nothing by, as `created`, or for an
# object that is renewed, as `vision`.
READ_LATER = {
    "adapters",
    "created",
    "engine",
    "is_local",
    "log_prompts",
    "lora_root",
    "metrics",
    "purpose",
    "reasoning_format",
    "response_template",
    "sampling_defaults",
    "sse_ping_seconds",
    "takes_predictions",
    "tokenizer",
    "tool_format",
    "vision",
}
# The objects with state that routes hold besides their context, and how a new one is made.
_NEW: dict[type, Callable[[ApiContext], object]] = {
    Bodies: lambda context: Bodies(
        context.limits, refuse_unknown=context.strict_fields, takes_images=context.vision is not None
    ),
    ResponseStore: lambda context: ResponseStore(context.limits.max_bytes_stored),
}


@dataclass
class _Shared:
    app: FastAPI
    context: ApiContext
    held: list[object]

    def renew(self, context: ApiContext) -> None:
        """Take the state of `context`, which is new, for that of the context before."""
        _leave_trials(self.context, context)
        _end(self.context)
        for each in self.held:
            each.__dict__ = vars(_NEW[type(each)](context))
            if isinstance(each, Bodies):
                vars(context)["bodies"] = each
        object.__setattr__(self.context, "__dict__", vars(context))
        self.app.middleware_stack = None  # is built by the next request: the layers count, too


_shared: dict[Hashable, _Shared] = {}


def app_over(context: ApiContext) -> FastAPI:
    """Return an application over `context`: the one made earlier for the same options, as if it were new.

    The application over the earlier context ends with that. `context` is new. With keys, which an application holds in
    many places, the application is new, too.
    """
    if context.api_keys is not None:
        return create_app(context)
    options = tuple(getattr(context, each.name) for each in fields(context) if each.name not in READ_LATER)
    shared = _shared.get(options)
    if shared is None:
        app = create_app(context)
        shared = _shared[options] = _Shared(app, context, _held(app, context))
    else:
        shared.renew(context)
    return shared.app


def _leave_trials(old: ApiContext, new: ApiContext) -> None:
    """Leave `new` the idle processes that compile grammars for `old`: they remember nothing, and take long to start."""
    is_alike = type(old.tokenizer).definition is type(new.tokenizer).definition
    if "grammars" in vars(old) and is_alike:
        new.grammars._idle, old.grammars._idle = old.grammars._idle, deque()
        new.grammars._trials = [*new.grammars._idle]
        old.grammars._trials = [each for each in old.grammars._trials if each not in new.grammars._idle]


def _end(context: ApiContext) -> None:
    for name in ("text", "grammars", "bodies"):
        if name in vars(context):
            vars(context)[name].close()


def _held(app: FastAPI, context: ApiContext) -> list[object]:
    """Find the objects with state that `app` holds besides `context`: one that nobody renews is an error here."""
    seen, waiting, held = {id(context)}, [app], list[object]()
    while waiting:
        each = waiting.pop()
        # What pydantic holds is of the classes of bodies, which all applications share.
        if id(each) in seen or isinstance(each, type | ModuleType | FieldInfo | TypeAdapter):
            continue
        seen.add(id(each))
        if _has_state(each):
            held.append(each)
        else:  # not the globals of functions, from which everything is reached
            waiting += each.__closure__ or () if isfunction(each) else gc.get_referents(each)
    assert {type(each) for each in held} == set(_NEW)
    return held


def _has_state(each: object) -> bool:
    kind = type(each)
    is_ours = kind.__module__.startswith("numaserve.") and not isinstance(each, APIRoute)
    is_frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen
    return is_ours and hasattr(each, "__dict__") and not is_frozen
