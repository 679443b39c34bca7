from __future__ import annotations

import pytest
from numaserve.server.cli.listen import bind_listener, url_of
from numaserve.workers.errors import OperatorError


def test_port_0_is_any_free_port_and_the_url_names_it() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_listener_on_every_address_is_reached_over_loopback() -> None:
    with bind_listener("0.0.0.0", 0) as listener:  # noqa: S104 nothing listens: it is only bound
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_a_host_that_does_not_exist_is_an_operator_error() -> None:
    with pytest.raises(OperatorError, match="--host no such host"):
        bind_listener("no such host", 0)
