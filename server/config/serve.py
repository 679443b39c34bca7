"""The server's configuration: defaults, overridden by a YAML file, overridden by the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from numaserve.server.config.errors import explain_value, unknown_key
from numaserve.server.config.file import read_config_file
from numaserve.server.config.lora_modules import LoraModules
from numaserve.server.config.model_options import ModelKeys
from numaserve.server.config.option_types import DrafterName, Names, NonBlank, Speculative, UrlPrefix, drafters_meant
from numaserve.server.config.tasks import Task
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend, ModelSettings, Quantization, settings_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
DEFAULT_RUNNING_REQUESTS = 64


class ServeConfig(BaseModel):
    """Every option of ``numaserve serve``. A key is the option's name with underscores; `KEYS` lists them all."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    model: NonBlank = Field(description="Model: Hugging Face folder, .gguf file, hub id, or 'demo'.")
    tp: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Number of tensor-parallel ranks. More ranks than NUMA nodes make virtual nodes. Default: one "
        "per usable NUMA node.",
    )
    pp: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of pipeline stages. Each stage has `tp` ranks and some of the model's layers, and a token "
        "passes all stages in turn.",
    )
    hosts: Path | None = Field(
        None,
        description="YAML file of the hosts of the pipeline stages, one stage for each. An agent runs on each further "
        "host. Default: all stages are on this host.",
    )
    backend: Backend = Field(
        "native",
        description="Backend that runs the model: `native` (the kernels) or `reference` (torch: slow, one rank, "
        "any processor). `reference` needs the package `torch`.",
    )
    task: Task | None = Field(
        None,
        description="Task of the server. `generate`: text. `embed`: /v1/embeddings, from the hidden states of a text. "
        "`sparse`: /embed_sparse, from a SPLADE model. `score`: also /v1/rerank and /v1/score, from the probability "
        "that a reranker answers yes. `classify`: /predict. Default: `generate`; for an encoder such as BERT `embed`, "
        "for a SPLADE model `sparse`. An encoder with a classification head has `score` for one label and `classify` "
        "for several.",
    )
    settings: ModelSettings = Field(
        DEFAULT_SETTINGS, description="Settings of the model, each with an option of its own."
    )
    host: NonBlank = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0 takes any free port.")
    root_path: UrlPrefix | None = Field(
        None,
        description="URL prefix under which a proxy exposes the server, such as /llm. Routes answer with and "
        "without the prefix.",
    )
    uds: Path | None = Field(None, description="Unix socket to listen on instead of an address.")
    ssl_certfile: Path | None = Field(None, description="Certificate chain (PEM) for HTTPS.")
    ssl_keyfile: Path | None = Field(None, description="Private key (PEM) of the certificate.")
    served_model_name: Names | None = Field(
        None,
        description="Model name in the API. Repeat the option for several names: requests may use any name, "
        "responses and metrics show the first. Default: the model's own name.",
    )
    context_length: int | None = Field(
        None,
        ge=32,
        le=1 << 24,
        description="Maximum tokens of a sequence, prompt and output together. Default: the model's context "
        "length, or the size of the KV cache if that is smaller.",
    )
    max_running_requests: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Maximum number of sequences in a batch. Default: 64, or fewer for a model whose recurrent states "
        "or window pages would take too much memory.",
    )
    max_queued_requests: int = Field(
        512, ge=0, le=1 << 20, description="Maximum number of requests in the queue. Further requests get status 429."
    )
    max_queued_seconds: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Maximum predicted work in the queue, in seconds. Further requests get status 429. The default "
        "is the timeout of OpenAI's clients.",
    )
    chunked_prefill_size: int | None = Field(
        None,
        ge=16,
        le=8192,
        description="Maximum tokens in one step, prompt and output together. A longer prompt of a bidirectional model "
        "has a step of its own. Default: 512, or up to 2048 where memory allows it and measured steps show that longer "
        "ones are faster.",
    )
    target_itl_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="Target duration of a step with output tokens, in ms. The scheduler splits prompts in the same "
        "step to meet the target. Default: the longest of 100, 3 times a step with the output tokens alone, and the "
        "shortest economical chunk of a mixture of experts.",
    )
    kv_cache_gib: float | None = Field(
        None,
        gt=0,
        le=1 << 14,
        description="Size of the KV cache of all ranks together, in GiB. Default: all that fits in memory, and no more "
        "than one step needs for a bidirectional model.",
    )
    state_cache_gib: float | None = Field(
        None,
        ge=0,
        le=1 << 14,
        description="Size of the cached states of a model with recurrent layers, of all ranks together, in GiB. A "
        "shared prompt prefix is reused up to a cached state. 0 caches none. The default is larger where the KV cache "
        "needs less than the rest, up to 8 states for each running sequence. Default: a quarter of the memory that "
        "weights, scratch and running sequences leave.",
    )
    mem_fraction_static: float = Field(
        0.85, gt=0, le=0.98, description="Fraction of a node's free memory for weights, scratch and caches."
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        le=1 << 16,
        description="Maximum memory for weights, scratch and caches of all ranks together, in GiB. Default: the "
        "free memory.",
    )
    lora: LoraModules | None = Field(
        None,
        description="LoRA adapter to load when the server starts, as NAME=PATH. PATH is a folder as PEFT writes it, or "
        "a .gguf file. Repeat the option for several adapters. Requests choose the adapter by NAME as their model. "
        "Default: no adapter.",
    )
    lora_root: Path | None = Field(
        None,
        description="Folder of the LoRA adapters that POST /v1/load_lora_adapter may load. It has no effect on `lora`. "
        "Default: no adapter is loaded while the server runs.",
    )
    max_images: int = Field(64, ge=1, le=4096, description="Maximum number of images in a request.")
    max_image_file_mib: float = Field(
        20.0, gt=0, le=1 << 12, description="Maximum size of an image file in a request, in MiB, before base64."
    )
    max_image_file_pixels: int = Field(
        50_000_000, ge=1, le=1 << 30, description="Maximum pixels of an image file in a request, before resizing."
    )
    image_memory_gib: float = Field(
        1.0,
        gt=0,
        le=1 << 14,
        description="Memory for the pixels of images in requests and of recent images, in GiB. A model without image "
        "input uses none.",
    )
    weights_cache_gib: float = Field(
        64.0,
        ge=0,
        le=1 << 16,
        description="Maximum disk space for packed weights, in GiB. The least recently used weights are removed "
        "first. 0 keeps no packed weights.",
    )
    chat_template: Path | None = Field(
        None, description="Jinja file that replaces the model's chat template. Default: the model's own template."
    )
    tool_call_parser: str | None = Field(
        None,
        description="Format of the model's tool calls, `response_template` for the response template in the "
        "model's own files, or `none`. Default: the format of the chat template, otherwise the "
        "response template.",
    )
    reasoning_parser: str | None = Field(
        None,
        description="Format of the model's reasoning before its answer, or `none`. Default: the format of "
        "the chat template.",
    )
    generation_config: Literal["model", "none"] = Field(
        "model",
        description="Source of the defaults for temperature, top_p, top_k, min_p and repetition_penalty: the "
        "model's generation_config.json (`model`) or the API (`none`). With `model`, the demo uses the "
        "values of its model card.",
    )
    dtype: Literal["auto", "bfloat16"] = Field(
        "auto",
        description="Type of weights that are not quantized: `auto` or `bfloat16`. Both store and multiply the "
        "weights in bf16, whatever type the checkpoint has.",
    )
    api_key_file: Path | None = Field(
        None,
        description="File of API keys, one per line. The limits of a key may follow it on the line. Default: "
        "clients need no key.",
    )
    log_level: LogLevel = Field("info", description="Log level: `debug`, `info`, `warning` or `error`.")
    log_format: LogFormat = Field(
        "auto",
        description="Format of the log: `text`, one line per event, with colours on a terminal unless NO_COLOR is set; "
        "`json`, one object per line; or `auto`, text on a terminal and JSON elsewhere.",
    )
    threads_per_worker: int | None = Field(
        None, ge=1, le=1024, description="Maximum number of cores per rank. Default: every core of the rank."
    )
    reserve_core: bool = Field(
        False,
        description="Reserve one core of the first node for the front end, the process that answers HTTP requests.",
    )
    blocking: Path | None = Field(
        None,
        description="File of block sizes of matrix products that `numaserve bench kernels --sweep --write` wrote on "
        "this host. The sizes are not used with another processor, microcode or build of the kernels, and the log says "
        "so. No result depends on them. Default: the sizes that are chosen for the processor.",
    )
    keep_alive_seconds: int = Field(
        120,
        ge=1,
        le=86400,
        description="Seconds that an idle connection stays open. Clients should close idle connections sooner.",
    )
    drain_seconds: float = Field(
        30.0, ge=0, le=86400, description="Seconds that running requests have to finish after SIGTERM."
    )
    step_deadline_seconds: float = Field(
        60.0,
        ge=1,
        le=3600,
        description="Seconds after which the workers of an unfinished step are restarted. They are also restarted "
        "when a step takes more than 5 s and 20 times its predicted duration.",
    )
    mask_deadline_ms: int = Field(
        5000,
        ge=1,
        le=600_000,
        description="Milliseconds that a constrained request waits until its allowed next tokens are computed. A "
        "request that waits longer ends with an error. Other requests do not wait.",
    )
    request_timeout: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="Maximum seconds of a request, in the queue and running. The X-Request-Timeout header of a "
        "request may set a shorter limit. A request that takes longer ends with status 504. Default: "
        "no limit.",
    )
    resume_timeout: float = Field(
        300.0,
        ge=0,
        le=86400,
        description="Seconds that requests wait for new workers after the workers failed. Requests that wait "
        "longer end with an error.",
    )
    overlap: bool = Field(True, description="Schedule the next step while the workers compute the current step.")
    draft_model: NonBlank | None = Field(
        None,
        description="Draft model for speculative decoding: a smaller model with the same vocabulary, named as "
        "MODEL is. The workers load it alongside the model. The option sets `speculative` to `auto` unless "
        "that option is set.",
    )
    draft_quantization: Quantization | None = Field(
        None,
        description="Format to quantize the draft model's weights to: `int8`, `int4` or `fp8`. `bf16` converts the "
        "weights of a quantized draft model to bf16.",
    )
    speculative: Speculative | None = Field(
        None,
        description="Drafters for speculative decoding: `off`, `auto` for all drafters, or drafters by name "
        "(repeat the option). A step verifies several draft tokens, and outputs stay identical bit by "
        "bit. `prediction`: the predicted output in the request. `suffix`: tokens that followed the "
        "same text earlier, in requests of the same cache group and cache_salt. `grammar`: tokens that "
        "a constraint forces. `draft_model`: the model of that option. `mtp`: the model's multi-token "
        "prediction layer, if it has one and there is no draft model. Default: off.",
    )
    prefix_cache: bool = Field(True, description="Reuse the KV cache of shared prompt prefixes.")
    kv_disk_path: Path | None = Field(
        None,
        description="Folder of cached prefixes that survive a restart. It belongs to one server, and no other user may "
        "write to it. Prompts lie in it: see docs/kv-disk.md. Default: prefixes are cached in memory alone.",
    )
    kv_disk_gib: float = Field(
        64.0,
        gt=0,
        le=1 << 20,
        description="Maximum size of the files in `kv_disk_path`, in GiB. The least recently used prefixes are removed "
        "first.",
    )
    kv_disk_max_age: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Seconds without use after which a prefix in `kv_disk_path` is removed. Default: no limit.",
    )
    kv_events: NonBlank | None = Field(
        None,
        description="Endpoint that publishes KV events for routers, in vLLM's format: ipc://PATH or "
        "tcp://127.0.0.1:PORT. API keys without cache-group= then share one prefix cache.",
    )
    kv_events_replay: NonBlank | None = Field(
        None,
        description="Endpoint where routers request missed KV events again. The address has the same form as "
        "in kv_events.",
    )
    kv_events_topic: NonBlank | None = Field(
        None, description="Topic of the KV events. Default: kv@HOST@MODEL, with the host name and the model name."
    )
    kv_events_anywhere: bool = Field(
        False,
        description="Allow other machines to read KV events. Every machine that connects can read prompts and outputs.",
    )
    sse_ping_seconds: float = Field(
        15.0,
        ge=0,
        le=3600,
        description="Seconds without output after which a stream sends a comment to keep the connection alive. 0 "
        "sends none.",
    )
    cors_origin: Names | None = Field(
        None,
        description="Origin whose pages may call the server from a browser (CORS), such as "
        "https://chat.example.com, or `*`. Repeat the option for several origins.",
    )
    allowed_host: Names | None = Field(
        None,
        description="Host name to accept in the Host header, for a server behind a proxy, or `*`. Repeat the "
        "option for several names. Default: local names.",
    )
    otlp_endpoint: NonBlank | None = Field(
        None,
        description="URL of an OpenTelemetry collector that receives the spans of each request over OTLP/HTTP, "
        "such as http://127.0.0.1:4318. It needs the packages `opentelemetry-sdk` and "
        "`opentelemetry-exporter-otlp-proto-http`. Default: OTEL_EXPORTER_OTLP_ENDPOINT, if set.",
    )
    ui: bool = Field(True, description="Serve GET /ui, a page to chat with the model and monitor the machine.")
    tokenizer_info: bool = Field(
        False, description="Serve GET /tokenizer_info, which shows the chat template to every client."
    )
    strict_fields: bool = Field(
        False, description="Reject requests with unknown fields instead of ignoring the fields."
    )
    log_prompts: bool = Field(False, description="Write prompts to the log.")

    @property
    def served_task(self) -> Task:
        """The task, after the model has decided about a task that is left out (`with_model_defaults`)."""
        return self.task or "generate"

    @property
    def lora_places(self) -> int:
        """The number of LoRA adapters that have memory: `max_loras`, else as many as `lora` names."""
        return self.settings.max_loras or len(self.lora or ())

    @property
    def running_limit(self) -> int:
        """The most sequences in a batch; a deployment may lower the default."""
        return self.max_running_requests or DEFAULT_RUNNING_REQUESTS

    @property
    def drafters(self) -> tuple[DrafterName, ...]:
        """The drafters in use."""
        meant = drafters_meant(self.speculative or (("auto",) if self.draft_model else ()))
        without = "mtp" if self.draft_model else "draft_model"
        return tuple(each for each in meant if each != without and (each != "mtp" or self.task != "embed"))

    @field_validator("lora")
    @classmethod
    def _has_places(cls, value: LoraModules | None, info: ValidationInfo) -> LoraModules | None:
        settings = info.data.get("settings", DEFAULT_SETTINGS)
        if 0 < settings.max_loras < len(value or ()):
            raise ValueError(
                f"names {len(value or ())} adapters, and 'max_loras' is {settings.max_loras}: raise 'max_loras', leave "
                "it out, or name fewer adapters"
            )
        return value

    @field_validator("kv_disk_path")
    @classmethod
    def _caches_prefixes(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not info.data.get("prefix_cache"):
            raise ValueError("needs the prefix cache, and 'prefix_cache' is off: leave out one of the two")
        return value

    @field_validator("kv_disk_gib", "kv_disk_max_age")
    @classmethod
    def _of_a_folder(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("kv_disk_path") is None:
            raise ValueError(f"needs 'kv_disk_path': set 'kv_disk_path' too, or leave out '{info.field_name}'")
        return value

    @field_validator("draft_model")
    @classmethod
    def _of_what_speaks(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("task") == "embed":
            raise ValueError(
                "needs a task that generates tokens, and 'task' is 'embed': leave out 'draft_model' or 'task'"
            )
        return value

    @field_validator("draft_quantization")
    @classmethod
    def _of_a_draft_model(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("draft_model") is None:
            raise ValueError("needs 'draft_model': set 'draft_model' too, or leave out 'draft_quantization'")
        return value

    @field_validator("speculative")
    @classmethod
    def _names_what_there_is(cls, value: Speculative | None, info: ValidationInfo) -> Speculative | None:
        if value is not None and "draft_model" in value and info.data.get("draft_model") is None:
            raise ValueError("needs a draft model: set the option 'draft_model' too")
        if value is not None and "mtp" in value and info.data.get("draft_model") is not None:
            raise ValueError("cannot be combined with 'draft_model': leave out 'mtp' or 'draft_model'")
        return value


# The keys of a configuration file, by name: the server's keys, and those of the model's settings.
KEYS: Mapping[str, FieldInfo] = {
    key: field
    for name, own in ServeConfig.model_fields.items()
    for key, field in (ModelKeys.model_fields.items() if name == "settings" else [(name, own)])
}


def load_config(options: Mapping[str, Any], file: Path | None = None) -> ServeConfig:
    """Merge defaults, `file` (or the shipped preset of that name) and `options` that are not None; the later win.

    Raises `OperatorError` with one line that names the key and the allowed values.
    """
    values: dict[str, Any] = {} if file is None else read_config_file(file)
    given = {key: value for key, value in options.items() if value is not None and value != []}
    where = {**dict.fromkeys(values, f"{file}: "), **dict.fromkeys(given, "")}
    values |= given
    # Unknown keys first: a missing key is often a misspelt one.
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
