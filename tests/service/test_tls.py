import ssl
from pathlib import Path

import pytest
from numaserve.server.connection.tls import Certificate, find_certificate
from numaserve.workers.interface.errors import OperatorError

from tests.support.certificates import Files, make_certificate


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_certificate(tmp_path / "first")


def shakes_hands(certificate: Certificate, client: ssl.SSLContext) -> bool:
    """Whether a client takes the certificate; all in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        certificate.context.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = [True, True]
    while any(waiting):
        for index, side in enumerate(sides):
            try:
                side.do_handshake()
                waiting[index] = False
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return True


def test_a_new_certificate_counts_for_new_connections(files: Files, tmp_path: Path) -> None:
    certificate = Certificate(files.certfile, files.keyfile)
    other = make_certificate(tmp_path / "second")
    assert shakes_hands(certificate, files.client())
    assert not shakes_hands(certificate, other.client())
    files.overwrite(other)
    certificate.reload()
    assert shakes_hands(certificate, other.client())
    assert not shakes_hands(certificate, files.client())


@pytest.mark.parametrize("spoilt", ["half", "garbage", "missing", "readable"])
def test_files_that_have_become_unusable_leave_the_certificate_as_it_was(
    files: Files, tmp_path: Path, spoilt: str
) -> None:
    certificate = Certificate(files.certfile, files.keyfile)
    if spoilt == "half":  # the renewed certificate, and not its key
        files.certfile.write_bytes(make_certificate(tmp_path / "second").certfile.read_bytes())
    elif spoilt == "garbage":
        files.certfile.write_text("garbage")
    elif spoilt == "missing":
        files.keyfile.unlink()
    else:
        files.keyfile.chmod(0o644)
    with pytest.raises(OperatorError) as caught:
        certificate.reload()
    assert str(files.certfile.parent) in str(caught.value)
    assert shakes_hands(certificate, files.client())


def test_old_versions_of_tls_are_not_spoken(files: Files) -> None:
    certificate = Certificate(files.certfile, files.keyfile)
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_key_that_needs_a_passphrase_is_refused_without_asking_for_it(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.keyfile.read_bytes(), None)
    files.keyfile.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OperatorError, match="is encrypted with a passphrase"):
        Certificate(files.certfile, files.keyfile)


def test_the_key_may_be_a_credential_of_the_service_manager(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(files.keyfile.parent))
    Certificate(files.certfile, Path("key.pem"))


def test_half_of_a_pair_is_refused(files: Files) -> None:
    assert find_certificate(None, None) is None
    with pytest.raises(OperatorError, match="--ssl-certfile needs --ssl-keyfile"):
        find_certificate(files.certfile, None)
    with pytest.raises(OperatorError, match="--ssl-keyfile needs --ssl-certfile"):
        find_certificate(None, files.keyfile)
