"""The hosts file: the host of each pipeline stage, and the key of the front end."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from numaserve.server.common.secret_file import check_unchanged
from numaserve.server.config.errors import validated
from numaserve.server.config.file import by_key, read_config_file
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import Address, is_secret_key, parse_address, parse_public_key
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

HERE = "here"  # a stage on the host of the front end
_MOST_STAGES = 64

Parsed = TypeVar("Parsed")


def _text(parse: Callable[[str], Parsed]) -> Callable[[object], Parsed]:
    def check(value: object) -> Parsed:
        if not isinstance(value, str):
            raise ValueError("must be a text")
        return parse(value)

    return check


class AgentHost(BaseModel):
    """The agent of a stage."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    agent: Annotated[Address, BeforeValidator(_text(parse_address))] = Field(description="Its address, as HOST:PORT.")
    public_key: Annotated[str, BeforeValidator(_text(parse_public_key))] = Field(description="Its public key.")
    model: Path | None = Field(None, description="Path of the checkpoint on its host. Default: the path on this host.")


class HostsFile(BaseModel):
    """The keys of the hosts file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_file: Path = Field(description="File of the secret key of this front end.")
    stages: list[Any] = Field(min_length=2, max_length=_MOST_STAGES, description="The host of each stage.")


def read_hosts(file: Path) -> tuple[Path, list[AgentHost | None]]:
    """Return the key file, and the agent of each stage; None for a stage on this host, which only the first can be.

    Raises `OperatorError` with one line that names the stage, the key and the allowed values.
    """
    check_unchanged(file, "hosts file")
    whole = validated(HostsFile, read_config_file(file), f"{file}: ")
    stages = [_stage(each, f"{file}: stage {number}") for number, each in enumerate(whole.stages)]
    if None in stages[1:]:
        raise OperatorError(
            f"{file}: only the first stage can be '{HERE}': run an agent on this host for another stage"
        )
    return whole.key_file, stages


def _stage(spelt: object, where: str) -> AgentHost | None:
    if spelt == HERE:
        return None
    if not isinstance(spelt, Mapping) or not all(isinstance(key, str) for key in spelt):
        raise OperatorError(f"{where} must be '{HERE}', or have the keys 'agent' and 'public-key', and perhaps 'model'")
    values = by_key(spelt, where)
    if is_secret_key(values.get("public_key")):
        raise OperatorError(
            f"{where}: public_key is a secret key, which may have been read by others now. Make a new pair with"
            " `numaserve agent --new-key`, and write its public key here"
        )
    return validated(AgentHost, values, f"{where}: ")
