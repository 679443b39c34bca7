"""The sources of API keys: a file, which is read again on SIGHUP, and the environment."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from numaserve.server.common.secret_file import find_secret_file
from numaserve.server.http.auth.key_file import ApiKey, read_keys
from numaserve.server.http.auth.keys import ApiKeys, Callers
from numaserve.server.http.auth.passed_clients import PassedClients
from numaserve.server.service.process.environment_key import take_environment_key

_log = logging.getLogger(__name__)


class KeySources:
    """The API keys of `file` and of the environment, if given; all keys are valid.

    With `passed`, a gateway in front of this server has checked the keys and names the client of each request. With
    `one_group`, keys share cached prefixes unless the file names a cache group for them.

    Raises `OperatorError` for a file or a key that cannot be used.
    """

    def __init__(self, file: Path | None, *, passed: bool = False, one_group: bool = False) -> None:
        key = take_environment_key()
        self._file = file
        self._from_environment = [] if key is None else [ApiKey(key)]
        self.on_reload: Callable[[Collection[str]], None] = lambda groups: None  # with the cache groups of all keys
        keys = self._read()
        self.keys: Callers | None = ApiKeys(keys, one_group=one_group) if keys else None  # None: no key is required
        if passed:
            self.keys = PassedClients(time.monotonic, one_group=one_group)

    def reload(self) -> None:
        """Read the file again. Raises `OperatorError`, and then keeps the old keys."""
        if isinstance(self.keys, ApiKeys):
            self.keys.replace(self._read())
            self.log_sharing()
            self.on_reload(self.keys.cache_groups())

    def log_sharing(self) -> None:
        """Log which keys share cached prefixes; nothing if no key is required."""
        if self.keys is None:
            return
        groups = self.keys.count_groups() if isinstance(self.keys, ApiKeys) else None
        if self.keys.sharing == "keys_without_group" and (groups is None or groups[""] != 1):
            _log.warning("%s", _told_to_routers(groups))
        elif groups is not None:
            _log.info(
                "API keys that share cached prefixes with no other key: %d; with the keys of the same "
                "cache-group=: %d (%s)",
                groups.pop("", 0),
                groups.total(),
                ", ".join(sorted(groups)) or "no group",
            )

    def _read(self) -> list[ApiKey]:
        # In this order, so that the file's settings for the environment's key apply.
        return self._from_environment + ([] if self._file is None else read_keys(find_key_file(self._file)))


def find_key_file(named: Path) -> Path:
    """Return the file that `api_key_file` names. Raises `OperatorError` as `find_secret_file` does."""
    return find_secret_file(named, "API key file")


def client_key(named: Path | None) -> str | None:
    """Return the key that a client sends, the first of the file if one is named.

    Raises `OperatorError` if the file has no key.
    """
    return None if named is None else read_keys(find_key_file(named))[0].key


def _told_to_routers(groups: Counter[str] | None) -> str:
    """Return the log text on what KV events reveal about the keys of each group; `groups` is None behind a gateway."""
    if groups is not None and not groups[""]:
        return (
            "KV events report no prefixes: they cover only API keys without cache-group=, and every API key has "
            "one. Remove cache-group= from the keys that routers use."
        )
    count = "" if groups is None else f" ({groups['']} of {groups.total()})"
    return (
        f"Because KV events are published, API keys without cache-group={count} share cached prefixes: KV events "
        "describe a single prefix cache. The field usage.cached_tokens in responses to one key can reveal prompts of "
        "other keys. Set cache-group= in the key file for keys that must be isolated. KV events do not include "
        "prefixes of keys with cache-group=."
    )
