"""The certificates with which commands verify https servers."""

import ssl
from pathlib import Path

from numaserve.workers.interface.errors import OperatorError


def tls_of(url: str, ca_file: Path | None) -> ssl.SSLContext | None:
    """Return the context that verifies the certificate of an https `url`; None for other URLs.

    Only the authorities of `ca_file` (PEM) are trusted; without `ca_file`, those of the system.

    Raises:
        OperatorError: `ca_file` holds no certificate, or is named for a URL that is not https.
    """
    if not url.startswith("https:"):
        if ca_file is not None:
            raise OperatorError(
                f"--ca-file needs an https URL, and {url} is not one: leave out --ca-file, or use an https URL"
            )
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        reason = (
            error.strerror
            if ca_file is not None and not ca_file.is_file()
            else ("the file contains no certificate in PEM format")
        )
        raise OperatorError(
            f"--ca-file {ca_file} cannot be used: {reason}. Name a file with the authority's certificate"
        ) from None


def advice(error: BaseException) -> str:
    """Return the advice that ends the message for a server that does not answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ". Name a file with the certificate of the server's authority with --ca-file"
    return ". Check that the server is running"
