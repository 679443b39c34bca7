"""The middleware around the gateway: that of a one-model server, without the checks that depend on a model."""

from numaserve.server.app.middleware.answer_limit import AnswerLimit
from numaserve.server.app.middleware.body_limit import BodyLimit
from numaserve.server.app.middleware.browsers import Browsers
from numaserve.server.app.middleware.header_limit import HeaderLimit
from numaserve.server.app.middleware.paths import Paths
from numaserve.server.app.middleware.request_scope import RequestScope
from numaserve.server.app.middleware.request_timeout import RequestTimeout
from numaserve.server.app.middleware.require_key import RequireKey
from numaserve.server.app.middleware.root_path import StripRootPath
from numaserve.server.gateway.gateway import Gateway
from numaserve.server.http.auth.keys import OPEN_PATHS
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.http.limits import ApiLimits
from numaserve.server.http.ui_files import ui_files
from starlette.types import ASGIApp


def with_layers(gateway: Gateway, browsers: BrowserRules, root_path: str | None = None) -> ASGIApp:
    """Return `gateway` inside the middleware that checks and bounds requests."""
    app: ASGIApp = BodyLimit(AnswerLimit(gateway, LIMITS), LIMITS)
    keys = gateway.routes.keys
    if keys is not None:
        open_paths = OPEN_PATHS | (ui_files().keys() if gateway.routes.ui else frozenset())
        app = RequireKey(app, keys, gateway.routes.metrics.refused, open_paths)
    app = Browsers(app, browsers, has_keys=keys is not None)
    app = RequestScope(HeaderLimit(RequestTimeout(app, LIMITS), LIMITS))
    if root_path:
        app = StripRootPath(app, root_path)
    return Paths(app)


# Limits on bodies and heads. The model process enforces limits that depend on its model, above all its context.
LIMITS = ApiLimits(context_length=0, vocab_size=0)
