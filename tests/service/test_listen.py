import pytest
from numaserve.server.connection.listen import bind_listener
from numaserve.workers.interface.errors import OperatorError


def test_port_0_is_any_free_port_and_the_url_names_it() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        assert listener.url == f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        assert listener.is_local


def test_a_listener_on_every_address_is_reached_over_loopback() -> None:
    with bind_listener("0.0.0.0", 0) as listener:  # noqa: S104 nothing listens: it is only bound
        assert listener.url.startswith("http://127.0.0.1:")
        assert not listener.is_local


def test_the_name_of_the_loopback_is_local() -> None:
    with bind_listener("localhost", 0) as listener:
        assert listener.is_local


def test_a_host_that_does_not_exist_is_an_operator_error() -> None:
    with pytest.raises(OperatorError, match="--host no such host"):
        bind_listener("no such host", 0)
