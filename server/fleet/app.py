"""The layers around the front door: those of a server of one model, but for what only that can decide."""

from numaserve.server.api.auth import OPEN_PATHS, Callers
from numaserve.server.api.browser_rules import BrowserRules
from numaserve.server.api.limits import ApiLimits
from numaserve.server.api.middleware.body_limit import BodyLimit
from numaserve.server.api.middleware.browsers import Browsers
from numaserve.server.api.middleware.header_limit import HeaderLimit
from numaserve.server.api.middleware.paths import Paths
from numaserve.server.api.middleware.request_scope import RequestScope
from numaserve.server.api.middleware.require_key import RequireKey
from numaserve.server.api.middleware.root_path import StripRootPath
from numaserve.server.metrics.labels import Refusal
from starlette.types import ASGIApp


def with_layers(front_door: ASGIApp, keys: Callers | None, browsers: BrowserRules, root_path: str | None) -> ASGIApp:
    """The application that is served: `front_door` behind what checks and bounds requests."""
    app: ASGIApp = BodyLimit(front_door, LIMITS)
    if keys is not None:
        app = RequireKey(app, keys, _uncounted, OPEN_PATHS)
    app = Browsers(app, browsers, has_keys=keys is not None)
    app = RequestScope(HeaderLimit(app, LIMITS))
    if root_path:
        app = StripRootPath(app, root_path)
    return Paths(app)


# Of bodies and heads. What depends on a model, its context above all, its own server bounds.
LIMITS = ApiLimits(context_length=0, vocab_size=0)


def _uncounted(_: Refusal) -> None:
    """Refusals are counted by the server of a model, and this one has not come so far."""
