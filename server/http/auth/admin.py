"""The permission to change the models of a server."""

from collections.abc import Iterable

from numaserve.server.http.auth.keys import Callers
from numaserve.server.http.errors import ApiError


def check_admin(what: str, keys: Callers | None, headers: Iterable[tuple[bytes, bytes]], *, is_local: bool) -> None:
    """Raise `ApiError` 403 unless the key of a request has ``admin=yes``.

    Without `keys` every client is allowed if `is_local`, which states that only this machine can send requests. `what`
    is the subject of the message.
    """
    if is_local if keys is None else keys.account(headers).admin:
        return
    how = (
        "an API key with admin=yes"
        if keys is not None
        else "API keys, one with admin=yes, because other machines can reach the server"
    )
    raise ApiError(403, f"{what} needs {how}.", code="forbidden", refusal=None)
