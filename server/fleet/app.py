"""The layers around the front door: those of a server of one model, but for what only that can decide."""

from numaserve.server.api.auth import OPEN_PATHS
from numaserve.server.api.browser_rules import BrowserRules
from numaserve.server.api.limits import ApiLimits
from numaserve.server.api.middleware.body_limit import BodyLimit
from numaserve.server.api.middleware.browsers import Browsers
from numaserve.server.api.middleware.header_limit import HeaderLimit
from numaserve.server.api.middleware.paths import Paths
from numaserve.server.api.middleware.request_scope import RequestScope
from numaserve.server.api.middleware.request_timeout import RequestTimeout
from numaserve.server.api.middleware.require_key import RequireKey
from numaserve.server.api.middleware.root_path import StripRootPath
from numaserve.server.api.ui_files import ui_files
from numaserve.server.fleet.front_door import FrontDoor
from starlette.types import ASGIApp


def with_layers(front_door: FrontDoor, browsers: BrowserRules, root_path: str | None = None) -> ASGIApp:
    """The application that is served: `front_door` behind what checks and bounds requests."""
    app: ASGIApp = BodyLimit(front_door, LIMITS)
    keys = front_door.routes.keys
    if keys is not None:
        open_paths = OPEN_PATHS | (ui_files().keys() if front_door.routes.ui else frozenset())
        app = RequireKey(app, keys, front_door.routes.metrics.refused, open_paths)
    app = Browsers(app, browsers, has_keys=keys is not None)
    app = RequestScope(HeaderLimit(RequestTimeout(app, LIMITS), LIMITS))
    if root_path:
        app = StripRootPath(app, root_path)
    return Paths(app)


# Of bodies and heads. What depends on a model, its context above all, its own server bounds.
LIMITS = ApiLimits(context_length=0, vocab_size=0)
