"""Routes with bounded bodies, which are decoded without blocking other requests."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from numaserve.server.http.access_log import record_of
from numaserve.server.http.body.decode import Body, BodyProblem, decode, from_data
from numaserve.server.http.body.need import BodyNeed, count_values
from numaserve.server.http.body.opaque import TakenOut
from numaserve.server.http.body.process import DecodingProcess
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import from_problem, too_large
from numaserve.server.http.fields.types import Strict
from numaserve.server.http.fields.unknown_fields import IgnoredFieldsLog, UnknownFields
from numaserve.server.http.limits import ApiLimits
from starlette.types import Scope

# Up to this size decoding any body takes a few milliseconds; passing it to the process takes about one.
INLINE_BYTES = 1 << 17
INLINE_VALUES = 1 << 12

_PAGES = frozenset({"origin", "sec-fetch-site"})  # headers that browsers send and that pages cannot suppress

_BEYOND_NEED = "The request body has more than {}, the limit for this model's context length. Shorten the request."


class Bodies:
    """Decodes the bodies of one server's requests."""

    def __init__(self, limits: ApiLimits, *, refuse_unknown: bool = False, takes_images: bool = False) -> None:
        self._limits = limits
        self._refuse_unknown = refuse_unknown
        self._takes_images = takes_images
        self._process = DecodingProcess()
        self._log = IgnoredFieldsLog()

    def close(self) -> None:
        """End the process that decodes long bodies."""
        self._process.close()

    async def decode(self, model: type[Body], request: Request) -> Body:
        """Return the body of `request`; its unknown fields are added to the request's record.

        Raises `ApiError` and `QueueFull`.
        """
        data = await request.body()
        need = BodyNeed.of(model.most_tokens(self._limits), self._limits, takes_images=self._takes_images)
        if len(data) > need.max_bytes:
            raise too_large(_BEYOND_NEED.format(f"{need.max_bytes} bytes"))
        values = count_values(data, need.max_values)
        if values > need.max_values:
            raise too_large(_BEYOND_NEED.format(f"{need.max_values} values and separators"))
        unknown = UnknownFields(self._refuse_unknown)
        record_of(request).unknown_fields = unknown
        try:
            if len(data) <= INLINE_BYTES and values <= INLINE_VALUES:
                return decode(model, data, unknown)
            return await until_disconnect(request, self._decode_elsewhere(model, data, unknown, need.max_text_bytes))
        except BodyProblem as error:
            raise from_problem(error.problem) from None
        finally:
            self._log.add(unknown)

    async def _decode_elsewhere(
        self, model: type[Body], data: bytes, unknown: UnknownFields, max_text_bytes: int
    ) -> Body:
        decoded = await self._process.decode(
            model, data, refuse_unknown=self._refuse_unknown, max_text_bytes=max_text_bytes
        )
        if decoded.text_bytes > max_text_bytes:
            raise too_large(_BEYOND_NEED.format(f"{max_text_bytes} bytes without its images"))
        unknown.names, unknown.count = decoded.ignored_names, decoded.ignored_count
        if decoded.problem is not None:
            raise BodyProblem(decoded.problem)
        return from_data(model, decoded.fields, TakenOut(decoded.opaque))


def body_route(bodies: Bodies, *, any_content_type: bool = False) -> type[APIRoute]:
    """Return the class of routes whose bodies are decoded by `bodies`.

    FastAPI accepts an instance of the body's class in place of decoded JSON. With `any_content_type` a body is JSON
    whatever its header says, except from a page in a browser: pages may send other types to foreign servers without a
    preflight (https://fetch.spec.whatwg.org/#simple-header).
    """

    class BodyRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            model = None if self.body_field is None else self.body_field.field_info.annotation
            if not (isinstance(model, type) and issubclass(model, Strict)):
                return handle

            async def handle_with_body(request: Request) -> Response:
                as_json = any_content_type and not _PAGES.intersection(request.headers)
                return await handle(_BodyRequest(request, bodies, model, as_json=as_json))

            return handle_with_body

    return BodyRoute


def _as_json(scope: Scope) -> Scope:
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


class _BodyRequest(Request):
    def __init__(self, request: Request, bodies: Bodies, model: type[Strict], *, as_json: bool) -> None:
        super().__init__(_as_json(request.scope) if as_json else request.scope, request.receive, request._send)
        self._bodies = bodies
        self._model = model

    async def json(self) -> Any:
        return await self._bodies.decode(self._model, self)
