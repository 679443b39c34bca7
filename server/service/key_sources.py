"""The sources of API keys: a file, which is read again at SIGHUP, and the environment."""

import time
from pathlib import Path

from numaserve.server.api.auth import ApiKeys, Callers
from numaserve.server.api.key_file import ApiKey, read_keys
from numaserve.server.api.passed_clients import PassedClients
from numaserve.server.service.environment_key import take_environment_key
from numaserve.server.service.secret_file import find_secret_file


class KeySources:
    """The keys of `file`, if there is one, and the one of the environment, if there is one; all of them count.

    With `passed` there is a front door before this server, which has checked keys and says whose requests are.

    Raises `OperatorError` for a file or a key that cannot be used.
    """

    def __init__(self, file: Path | None, *, passed: bool = False) -> None:
        key = take_environment_key()
        self._file = file
        self._from_environment = [] if key is None else [ApiKey(key)]
        keys = self._read()
        self.keys: Callers | None = ApiKeys(keys) if keys else None  # None: no key is asked for
        if passed:
            self.keys = PassedClients(time.monotonic)

    def reload(self) -> None:
        """Accept what the file says now. Raises `OperatorError`, and then nothing has changed."""
        if isinstance(self.keys, ApiKeys):
            self.keys.replace(self._read())

    def _read(self) -> list[ApiKey]:
        # In this order: what the file says of the environment's key holds.
        return self._from_environment + ([] if self._file is None else read_keys(find_key_file(self._file)))


def find_key_file(named: Path) -> Path:
    """The file that `api_key_file` names. Raises `OperatorError` as `find_secret_file` does."""
    return find_secret_file(named, "API key file")


def client_key(named: Path | None) -> str | None:
    """The key a client sends: the first of the file, if one is named. Raises `OperatorError` when there is none."""
    return None if named is None else read_keys(find_key_file(named))[0].key
