"""The TLS certificate of the server."""

import ssl
from pathlib import Path
from typing import NoReturn

from numaserve.server.common.secret_file import find_secret_file
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_file


class Certificate:
    """A certificate chain and its private key, both PEM, in a context for TLS 1.2 and later.

    Raises `OperatorError` for files that cannot be used or do not match.
    """

    def __init__(self, certfile: Path, keyfile: Path) -> None:
        self._certfile = certfile
        self._keyfile = keyfile
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.reload()

    def reload(self) -> None:
        """Load the files again for new connections. Raises `OperatorError`, and then keeps the old certificate."""
        # Loading a pair that does not match would leave the context without a key: test it in a new context first.
        self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load_into(self.context)

    def _load_into(self, context: ssl.SSLContext) -> None:
        keyfile = find_secret_file(self._keyfile, "private key")
        for path in (self._certfile, keyfile):
            read_file(path, SETTINGS_BYTES)  # OpenSSL would block on a FIFO, and read a device indefinitely
        try:
            context.load_cert_chain(self._certfile, keyfile, password=self._refuse_passphrase)
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise OperatorError(
                f"{self._certfile} and {keyfile} are not a certificate and its private key in PEM format: {reason}"
            ) from None
        except OSError as error:
            raise OperatorError(f"cannot read {self._certfile} or {keyfile}: {error.strerror}") from None

    def _refuse_passphrase(self) -> NoReturn:
        raise OperatorError(
            f"the private key {self._keyfile} is encrypted with a passphrase: use a private key without a passphrase"
        )


def find_certificate(certfile: Path | None, keyfile: Path | None) -> Certificate | None:
    """Return the certificate that the options name, None if they name none. Raises `OperatorError` for half a pair."""
    if certfile is None and keyfile is None:
        return None
    if certfile is None:
        raise OperatorError("--ssl-keyfile needs --ssl-certfile: set both, or neither")
    if keyfile is None:
        raise OperatorError("--ssl-certfile needs --ssl-keyfile: set both, or neither")
    return Certificate(certfile, keyfile)
