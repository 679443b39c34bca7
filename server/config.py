"""The server's configuration: defaults, overridden by a YAML file, overridden by the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from numaserve.server.config_errors import explain_value, unknown_key
from numaserve.server.config_file import read_config_file
from numaserve.server.model_options import ModelKeys
from numaserve.server.option_types import DrafterName, Names, NonBlank, Speculative, UrlPrefix, drafters_meant
from numaserve.workers.errors import OperatorError
from numaserve.workers.settings import DEFAULT_SETTINGS, Backend, ModelSettings, Quantization, settings_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

Task = Literal["generate", "embed", "score"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]


class ServeConfig(BaseModel):
    """Every option of ``numaserve serve``. A key is the option's name with underscores; `KEYS` lists them all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    model: NonBlank = Field(description="Hugging Face folder, .gguf file, hub id, or 'demo'.")
    tp: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Tensor-parallel ranks; more than nodes makes virtual nodes. Default: one per usable NUMA node.",
    )
    backend: Backend = Field(
        "native",
        description="What runs the model: the kernels (`native`), or torch (`reference`), slowly, on one rank and any "
        "processor. It needs numaserve[reference].",
    )
    task: Task = Field(
        "generate",
        description="`generate` text; `embed`: answer /v1/embeddings with the last token's hidden state; or `score`: "
        "answer /v1/rerank and /v1/score, too, by the probability of a reranker's yes.",
    )
    settings: ModelSettings = Field(DEFAULT_SETTINGS, description="Of the model; keys of their own, see `KEYS`.")
    host: NonBlank = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    root_path: UrlPrefix | None = Field(
        None, description="Prefix under which a proxy shows the server, as in /llm; routes answer with it and without."
    )
    uds: Path | None = Field(None, description="Unix socket to listen on instead of an address.")
    ssl_certfile: Path | None = Field(None, description="Certificate chain (PEM) to speak HTTPS with.")
    ssl_keyfile: Path | None = Field(None, description="The certificate's private key (PEM).")
    served_model_name: Names | None = Field(
        None,
        description="Name in the API; may be given several times: requests may have any of them, answers and metrics "
        "have the first. Default: the model's own.",
    )
    context_length: int | None = Field(
        None,
        ge=32,
        le=1 << 24,
        description="Longest sequence, prompt and output together. Default: the model's, less if the KV cache holds "
        "less.",
    )
    max_running_requests: int = Field(64, ge=1, le=4096, description="Sequences in a batch.")
    max_queued_requests: int = Field(
        512, ge=0, le=1 << 20, description="Requests that may wait; beyond that clients get 429."
    )
    max_queued_seconds: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Seconds of work, as predicted, that may wait; beyond that clients get 429. The default is when "
        "OpenAI's clients give up.",
    )
    chunked_prefill_size: int = Field(
        512, ge=16, le=8192, description="Tokens in one step, prompt and output together."
    )
    target_itl_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="How long a step with output tokens may take, in ms: prompts beside them are cut so that it takes "
        "no longer. Default: 100, or 3 times a step of the output tokens alone if that is more.",
    )
    kv_cache_gib: float | None = Field(
        None, gt=0, le=1 << 14, description="KV cache of all ranks together, in GiB. Default: what fits."
    )
    mem_fraction_static: float = Field(
        0.85, gt=0, le=0.98, description="Part of a node's free memory for weights, scratch and KV cache."
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        le=1 << 16,
        description="Most memory for weights, scratch and KV cache of all ranks, in GiB. Default: what is free.",
    )
    weights_cache_gib: float = Field(
        64.0,
        ge=0,
        le=1 << 16,
        description="Disk space for packed weights, in GiB: the least recently used ones go, and 0 keeps none.",
    )
    chat_template: Path | None = Field(
        None, description="Jinja file that replaces the model's chat template. Default: the model's own."
    )
    tool_call_parser: str | None = Field(
        None,
        description="Format in which the model calls tools, `response_template` for what the model itself says of its "
        "answers, or `none`. Default: its chat template's, else its response template.",
    )
    reasoning_parser: str | None = Field(
        None, description="Format in which the model thinks before it answers, or `none`. Default: its chat template's."
    )
    generation_config: Literal["model", "none"] = Field(
        "model",
        description="Whose defaults apply to temperature, top_p, top_k, min_p and repetition_penalty: those of the "
        "model's generation_config.json (`model`) or the API's (`none`). The demo has those of its model card.",
    )
    dtype: Literal["auto", "bfloat16"] = Field(
        "auto",
        description="`auto` or `bfloat16`: weights that are not quantized are kept and multiplied in bf16, whatever "
        "they are published in.",
    )
    api_key_file: Path | None = Field(
        None,
        description="File of API keys, one a line; what limits it may stand behind it. Default: no key is asked for.",
    )
    log_level: LogLevel = Field("info", description="`debug`, `info`, `warning` or `error`.")
    log_format: LogFormat = Field(
        "auto",
        description="Format of the log: `text`, one line an event, with colours on a terminal unless NO_COLOR is set; "
        "`json`, one object a line; or `auto`, text on a terminal and JSON elsewhere.",
    )
    threads_per_worker: int | None = Field(
        None, ge=1, le=1024, description="At most so many cores for each rank. Default: every core of the rank."
    )
    reserve_core: bool = Field(False, description="Keep one core of the first node for the front end.")
    keep_alive_seconds: int = Field(
        120, ge=1, le=86400, description="How long an idle connection stays open; a client should close its own sooner."
    )
    drain_seconds: float = Field(30.0, ge=0, le=86400, description="How long running requests may finish at SIGTERM.")
    step_deadline_seconds: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="A step that takes longer counts as a dead worker, as does "
        "one that takes 5 s and 20 times as long as is predicted.",
    )
    mask_deadline_ms: int = Field(
        5000,
        ge=1,
        le=600_000,
        description="Milliseconds that a constrained request waits for the tokens that its constraint allows next; "
        "after that it ends with an error. Other requests do not wait for it.",
    )
    request_timeout: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="Seconds that a request may take, in the queue and running; a request's X-Request-Timeout may ask "
        "for fewer. One that takes longer ends with 504. Default: no limit.",
    )
    resume_timeout: float = Field(
        300.0,
        ge=0,
        le=86400,
        description="Seconds for which requests wait for new workers when the old ones have failed; then they end.",
    )
    overlap: bool = Field(True, description="Plan one step ahead of the workers.")
    draft_model: NonBlank | None = Field(
        None,
        description="A smaller model of the same vocabulary, named like the model itself, that the workers load beside "
        "it to guess what it will say: see `speculative`, which is then `auto` unless it says otherwise.",
    )
    draft_quantization: Quantization | None = Field(
        None,
        description="Quantize the weights of the draft model: `int8`, `int4` or `fp8`; `bf16` expands those of one "
        "that is quantized.",
    )
    speculative: Speculative | None = Field(
        None,
        description="What guesses the next tokens, of which a step then verifies several: `off`, `auto` for all that "
        "follows, or some of it, given several times: `prediction` by what the request says that its answer will be; "
        "`suffix` by what followed when the same tokens came before, in requests of the same cache group and "
        "cache_salt; `grammar` by what a constraint allows; `draft_model` by the smaller model of that option; `mtp` "
        "by the model's own layer that predicts, where it has one and there is no draft model. Answers are the same "
        "to the last bit. Default: off.",
    )
    prefix_cache: bool = Field(True, description="Reuse the KV cache of equal prompt beginnings.")
    kv_events: NonBlank | None = Field(
        None,
        description="Where routers read which prefixes are cached, as from vLLM: ipc://PATH, or tcp://127.0.0.1:PORT. "
        "API keys without cache-group= then share one prefix cache.",
    )
    kv_events_replay: NonBlank | None = Field(
        None, description="Where they ask again for events that they have missed; an address like that of kv_events."
    )
    kv_events_topic: NonBlank | None = Field(
        None, description="The topic of KV events. Default: kv@HOST@MODEL, with this machine's and the model's name."
    )
    kv_events_anywhere: bool = Field(
        False,
        description="Let KV events be read from other machines: whoever connects reads what is asked and answered.",
    )
    sse_ping_seconds: float = Field(
        15.0,
        ge=0,
        le=3600,
        description="Seconds without output until a stream gets a comment, so that nobody takes it for dead; 0 sends "
        "none.",
    )
    cors_origin: Names | None = Field(
        None,
        description="Origin whose pages may use the server from a browser, such as https://chat.example.com, or `*`; "
        "may be given several times.",
    )
    allowed_host: Names | None = Field(
        None,
        description="Host name that the server may be called by, for a proxy before it, or `*`; may be given several "
        "times. Default: local names.",
    )
    otlp_endpoint: NonBlank | None = Field(
        None,
        description="OpenTelemetry collector that is sent spans of each request over OTLP/HTTP, such as "
        "http://127.0.0.1:4318. Default: OTEL_EXPORTER_OTLP_ENDPOINT's, if it is set. It needs numaserve[otel].",
    )
    ui: bool = Field(True, description="Serve GET /ui: a page to chat with the model and to look at the machine.")
    tokenizer_info: bool = Field(
        False, description="Serve GET /tokenizer_info, which shows the chat template to every client."
    )
    strict_fields: bool = Field(
        False, description="Refuse requests with fields that the server does not know, instead of ignoring those."
    )
    log_prompts: bool = Field(False, description="Write prompts to the log.")

    @property
    def drafters(self) -> tuple[DrafterName, ...]:
        """What guesses."""
        meant = drafters_meant(self.speculative or (("auto",) if self.draft_model else ()))
        without = "mtp" if self.draft_model else "draft_model"
        return tuple(each for each in meant if each != without and (each != "mtp" or self.task != "embed"))

    @field_validator("draft_model")
    @classmethod
    def _of_what_speaks(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("task") == "embed":
            raise ValueError("guesses tokens, and a model that embeds says none: leave one of both out")
        return value

    @field_validator("draft_quantization")
    @classmethod
    def _of_a_draft_model(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("draft_model") is None:
            raise ValueError("needs 'draft_model' to be set too")
        return value

    @field_validator("speculative")
    @classmethod
    def _names_what_there_is(cls, value: Speculative | None, info: ValidationInfo) -> Speculative | None:
        if value is not None and "draft_model" in value and info.data.get("draft_model") is None:
            raise ValueError("names the draft model: set 'draft_model' too")
        if value is not None and "mtp" in value and info.data.get("draft_model") is not None:
            raise ValueError("names mtp beside the draft model: leave one of both out")
        return value


# The keys of a configuration file, by name: the server's own, and those of the model's settings.
KEYS: Mapping[str, FieldInfo] = {
    key: field
    for name, own in ServeConfig.model_fields.items()
    for key, field in (ModelKeys.model_fields.items() if name == "settings" else [(name, own)])
}


def load_config(options: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """Merge defaults, `file` (or the shipped preset of that name) and `options` (those that are not None), the later
    winning.

    Raises `OperatorError` with one line that names the key and what it may be.
    """
    values: dict[str, Any] = {} if file is None else read_config_file(file)
    given = {key: value for key, value in options.items() if value is not None and value != []}
    where = {**dict.fromkeys(values, f"{file}: "), **dict.fromkeys(given, "")}
    values |= given
    # First: where a key is missing, it is often because it was misspelt.
    for key in values:
        if key not in KEYS:
            raise OperatorError(where[key] + unknown_key(key, KEYS))
    try:
        of_model = ModelKeys.model_validate({key: values.pop(key) for key in ModelKeys.model_fields if key in values})
        return ServeConfig.model_validate(values | {"settings": settings_of(of_model.model_dump())})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise OperatorError(where.get(key, "") + explain_value(key, first, KEYS)) from None
