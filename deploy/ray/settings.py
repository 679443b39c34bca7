"""The settings of the application."""

import shlex
import sys

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Settings(BaseModel):
    """The arguments of `serve run numaserve.ray.application:build`, and of `args` in a Serve configuration file."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="Hugging Face folder, hub id or GGUF file, as for `numaserve serve`")
    options: list[str] = Field(
        default=[], description="More options of `numaserve serve`. A string is split as in a shell"
    )
    nodes: int = Field(default=1, ge=1, description="NUMA nodes per replica")
    min_replicas: int = Field(default=1, ge=1, description="Minimum number of replicas")
    max_replicas: int = Field(default=1, ge=1, description="Maximum number of replicas")
    target_requests: float = Field(
        default=16.0, gt=0, description="Target number of requests per replica, running and waiting"
    )
    target_kv_usage: float = Field(
        default=0.8, gt=0, le=1, description="Target fraction of a replica's KV cache in use"
    )
    max_requests: int = Field(default=256, ge=1, description="Maximum number of concurrent requests per replica")
    upscale_delay_s: float = Field(default=10.0, ge=0, description="Seconds of high load before more replicas start")
    downscale_delay_s: float = Field(default=300.0, ge=0, description="Seconds of low load before a replica stops")
    look_back_s: float = Field(default=15.0, gt=0, description="Seconds over which load is averaged")
    start_seconds: float = Field(default=1800.0, gt=0, description="Maximum seconds for a server to load its model")
    drain_seconds: float = Field(
        default=60.0, gt=0, description="Seconds for running requests to finish when their replica stops"
    )
    unready_seconds: float = Field(
        default=300.0,
        gt=0,
        description="Maximum seconds for a server to become ready again, such as after a restart of its workers",
    )
    retry_seconds: float = Field(
        default=60.0,
        ge=0,
        description="Seconds without output after which a failed request is no longer retried on other replicas",
    )
    ingress_replicas: int = Field(
        default=1, ge=1, description="Number of ingress processes between clients and replicas"
    )
    ingress_resources: dict[str, float] = Field(
        default={}, description="Ray resources that an ingress process requires, to place it on certain hosts"
    )
    command: list[str] = Field(
        default=[sys.executable, "-P", "-m", "numaserve.server.cli.main"], description="Command that runs `numaserve`"
    )
    nodes_folder: str = Field(
        default="/sys/devices/system/node", description="Folder where the kernel lists NUMA nodes"
    )

    @field_validator("options", "command", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return shlex.split(value) if isinstance(value, str) else value
