"""The enforcement of the rules for browsers: foreign host names and foreign pages are refused; then CORS."""

from numaserve.server.http.auth.quota import RATE_HEADERS
from numaserve.server.http.browser_rules import ANY, BrowserRules, host_name, is_local
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.unknown_fields import HEADER as IGNORED_HEADER
from numaserve.server.http.left_out import HEADER as LEFT_OUT_HEADER
from numaserve.server.surfaces.errors import error_of
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

_EXPOSED = ("X-Request-Id", IGNORED_HEADER, LEFT_OUT_HEADER, "Retry-After", *RATE_HEADERS)
_MAX_AGE_S = 600  # time for which browsers cache the answer to a preflight


class Browsers:
    """The layer that refuses foreign host names, and foreign pages unless API keys are required; then adds CORS."""

    def __init__(self, app: ASGIApp, rules: BrowserRules, *, has_keys: bool) -> None:
        self._rules = rules
        self._has_keys = has_keys
        self._app = app
        if rules.cors_origins:
            self._app = CORSMiddleware(
                app,
                allow_origins=rules.cors_origins,
                allow_methods=["GET", "HEAD", "POST", "DELETE"],
                allow_headers=[ANY],
                expose_headers=_EXPOSED,
                max_age=_MAX_AGE_S,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on or answer 403."""
        error = self._objection(scope["headers"], scope["method"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_of(scope, error)(scope, receive, send)

    def _objection(self, headers: list[tuple[bytes, bytes]], method: str) -> ApiError | None:
        hosts = _values(headers, b"host")
        if not all(self._rules.allow_host(host) for host in hosts):
            return _refused(
                "The server does not accept requests for this host name. "
                "The operator can allow the name with --allowed-host."
            )
        # A preflight carries no key, but asks about requests that may carry one.
        if self._has_keys and method != "OPTIONS":
            return None
        if self._is_foreign(headers, hosts):
            return _refused(
                "Web pages of other sites cannot use this server. The operator can allow an origin with --cors-origin."
            )
        return None

    def _is_foreign(self, headers: list[tuple[bytes, bytes]], hosts: list[str]) -> bool:
        origins = _values(headers, b"origin")
        if origins and all(self._rules.allow_origin(origin) for origin in origins):
            return False
        sites = _values(headers, b"sec-fetch-site")
        if sites:  # set by the browser; no page can forge it
            return "cross-site" in sites
        return not all(_is_same_site(origin, hosts) for origin in origins)


def _is_same_site(origin: str, hosts: list[str]) -> bool:
    name = host_name(origin.partition("://")[2])  # empty for "null", the origin of sandboxed pages
    return all(name == host_name(host) or (is_local(name) and is_local(host_name(host))) for host in hosts)


def _values(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name == wanted]


def _refused(message: str) -> ApiError:
    return ApiError(403, message, code="forbidden", refusal=None)
