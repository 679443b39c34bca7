"""The files of the page at GET /ui, and their response headers."""

import functools
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

PAGE = "/ui"
_FOLDER = Path(__file__).parents[1] / "ui"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Only files from here, nothing inline, no frame around the page, and no text that becomes markup or code: a model's
# output is untrusted. The user's images have blob: URLs, which only the page can make. A model could write a data: URL.
# https://www.w3.org/TR/CSP3/, https://www.w3.org/TR/trusted-types/
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a newer server version has other files with the same names
}


@dataclass(frozen=True)
class UiFile:
    """A file of the page."""

    content: bytes
    kind: str  # as in Content-Type


@functools.cache
def ui_files() -> dict[str, UiFile]:
    """Return the files by the path under which they are served; the page itself is `PAGE`."""
    return {
        PAGE if file.name == "index.html" else f"{PAGE}/{file.name}": UiFile(file.read_bytes(), _KINDS[file.suffix])
        for file in sorted(_FOLDER.iterdir())
        if file.suffix in _KINDS
    }


def page_location(root_path: str) -> str:
    """Return the location of the page, relative to the root of a server that a proxy serves under `root_path`.

    Without a known prefix the location is relative: a proxy may remove a prefix that the server does not know.
    """
    return f"{root_path}{PAGE}" if root_path else PAGE.removeprefix("/")


def ui_answer(path: str, request: Request) -> Response:
    """Return the file that is served under `path`, one of `ui_files`."""
    # The page names its files relative to its own path, which a proxy may have prefixed: a slash at the end, which is
    # taken off elsewhere, would change what that means. The target is relative, so no Host header is in it.
    if request.scope.get("raw_path", b"").endswith(f"{PAGE}/".encode()):
        return RedirectResponse(f"..{PAGE}", headers=HEADERS)
    file = ui_files()[path]
    return Response(file.content, media_type=file.kind, headers=HEADERS)
