"""What an application is made with."""

import shlex
import sys

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Settings(BaseModel):
    """The arguments of `serve run numaserve.ray.application:build`, and of `args` in a Serve configuration file."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="Folder, hub id or GGUF file, as for `numaserve serve`")
    options: list[str] = Field(
        default=[], description="Further options of `numaserve serve`; a text is split as a shell does"
    )
    nodes: int = Field(default=1, ge=1, description="NUMA nodes of a replica")
    min_replicas: int = Field(default=1, ge=1, description="Replicas without load")
    max_replicas: int = Field(default=1, ge=1, description="Replicas at most")
    target_requests: float = Field(
        default=16.0, gt=0, description="Requests of a replica, running and waiting, that are as many as it should have"
    )
    target_kv_usage: float = Field(
        default=0.8, gt=0, le=1, description="Part of a replica's KV cache in use that is as much as it should be"
    )
    max_requests: int = Field(default=256, ge=1, description="Requests that a replica takes at once")
    upscale_delay_s: float = Field(default=10.0, ge=0, description="Seconds of want of replicas before others start")
    downscale_delay_s: float = Field(
        default=300.0, ge=0, description="Seconds that replicas are more than is needed before one ends"
    )
    look_back_s: float = Field(default=15.0, gt=0, description="Seconds over which load is averaged")
    start_seconds: float = Field(default=1800.0, gt=0, description="Seconds that a server may take to load its model")
    drain_seconds: float = Field(default=60.0, gt=0, description="Seconds for requests of a replica that ends")
    unready_seconds: float = Field(
        default=300.0, gt=0, description="Seconds that a server may be unready, as while its workers are replaced"
    )
    retry_seconds: float = Field(
        default=60.0, ge=0, description="Seconds for which a request without output is sent to others when one fails"
    )
    ingress_replicas: int = Field(default=1, ge=1, description="Processes that stand between clients and replicas")
    ingress_resources: dict[str, float] = Field(
        default={}, description="Ray's resources that such a process asks for, to have it on certain hosts"
    )
    command: list[str] = Field(
        default=[sys.executable, "-m", "numaserve.server.cli.main"], description="What runs `numaserve`"
    )
    nodes_folder: str = Field(default="/sys/devices/system/node", description="Where the kernel tells of NUMA nodes")

    @field_validator("options", "command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return shlex.split(value) if isinstance(value, str) else value
