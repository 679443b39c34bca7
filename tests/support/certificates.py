"""Certificates of our own for 127.0.0.1 and localhost."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    certfile: Path
    keyfile: Path
    trust: Path  # what a client trusts, to reach a server with this certificate and no other

    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.trust))

    def overwrite(self, other: Files) -> None:
        """Hold what `other` holds, as a renewal would."""
        self.certfile.write_bytes(other.certfile.read_bytes())
        self.keyfile.write_bytes(other.keyfile.read_bytes())


def make_certificate(folder: Path) -> Files:
    """A new authority and a certificate of it, in a new `folder`."""
    folder.mkdir()
    files = Files(folder / "cert.pem", folder / "key.pem", folder / "trust.pem")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(files.trust))
    certificate.private_key_pem.write_to_path(str(files.keyfile))
    files.keyfile.chmod(0o600)
    files.certfile.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    return files
