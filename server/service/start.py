"""The start of the server, up to the model's files.

Few modules are imported here. The tokenizer check runs in its process while this process imports the other modules,
which takes half a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NoReturn

from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.descriptors import check_descriptors
from numaserve.server.service.bind import GatewayLink, bind_listeners, warn_of_reach
from numaserve.server.service.checks.backend import check_backend
from numaserve.server.service.checks.tokenizer_check import TokenizerCheck
from numaserve.server.service.process.key_sources import KeySources
from numaserve.server.service.process.logs import set_up_logging
from numaserve.server.service.started import Started
from numaserve.server.supervisor.process import DEFAULT_COMMAND
from numaserve.workers.weights.hub import resolve_model


def run_service(
    config: ServeConfig, worker_command: Sequence[str] = DEFAULT_COMMAND, link: GatewayLink | None = None
) -> NoReturn:
    """Serve until a stop signal, and end the process. Raises `OperatorError` for mistakes of the operator.

    `worker_command` starts a worker, without its arguments. With a `link`, the server is a model process of a gateway.
    """
    # First: no other code may see a key in the environment.
    key_sources = KeySources(
        config.api_key_file,
        passed=link is not None,
        # Routers index events by tokens alone, and would count a prefix that one key has cached for all keys.
        one_group=config.kv_events is not None,
    )
    set_up_logging(config.log_level, config.log_format, None if link is None else link.name)
    key_sources.log_sharing()
    check_descriptors(config.running_limit)
    with contextlib.ExitStack() as closing:
        bound = bind_listeners(config) if link is None else [link.listener]
        listeners = [closing.enter_context(each) for each in bound]
        if key_sources.keys is None:
            warn_of_reach(listeners)
        kernels = check_backend(config.backend, None if link is None else link.kernels)
        path = resolve_model(config.model)
        tokenizer_check = closing.enter_context(TokenizerCheck(path))
        from numaserve.server.service.service import serve  # noqa: PLC0415 the process of the check works meanwhile

        serve(
            Started(config, key_sources, listeners, kernels, path, tokenizer_check, worker_command, link),
            closing,
        )
