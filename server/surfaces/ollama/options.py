"""The fields that /api/chat and /api/generate share, and Ollama's sampling options."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from numaserve.server.generation.asked import Constrained, effort_arguments
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.http.fields.types import (
    MAX_INT,
    MAX_STOP_STRINGS,
    Neutral,
    ShortText,
    StopString,
    Strict,
    TopLogprobs,
    Unused,
    conflict,
    neutral,
    no_overflow,
)
from numaserve.server.structured.types import Constraint
from numaserve.server.surfaces.openai.constraint_fields import Meaning, read_schema
from numaserve.server.surfaces.openai.constraint_shapes import OBJECT
from pydantic import Discriminator, Field, Tag, model_validator

_RANDOM_SEED = -1


def _kind_of_thinking(value: object) -> str:
    return "[level]" if isinstance(value, str) else "[switch]"


# Tags, so that an error names the kind that was sent; with brackets, so that `param_of` leaves them out.
_Think = Annotated[
    Annotated[bool, Tag("[switch]")] | Annotated[Literal["low", "medium", "high"], Tag("[level]")],
    Discriminator(_kind_of_thinking),
]


class Options(Strict):
    """Sampling parameters and stop conditions. Omitted options take the server's defaults, not Ollama's."""

    temperature: Annotated[float, Field(ge=0, le=2), no_overflow] | None = None
    """Sampling temperature; 0 is greedy."""
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Number of most likely tokens to sample from; 0 and -1 sample from all tokens."""
    top_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Sample from the most likely tokens up to this total probability."""
    min_p: Annotated[float, Field(ge=0, le=1), no_overflow] | None = None
    """Minimum probability of a token, relative to the most likely token."""
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    """Seed of the random numbers; random with -1 or unless set."""
    num_predict: Annotated[int, Field(ge=-2, le=MAX_INT)] | None = None
    """Maximum number of tokens to generate. Unless set, or with 0 or less, only the context length limits the
    response."""
    stop: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    """Strings that end the response; they are not part of the response."""
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100), no_overflow] | None = None
    """Penalty for tokens of the prompt and the output: divides their positive logits and multiplies their other
    logits."""
    repeat_last_n: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Number of last tokens that penalties apply to. Penalties always apply to the whole text: -1 is the only value
    allowed together with a penalty."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from the logit of every generated token."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2), no_overflow] | None = None
    """Value subtracted from a token's logit for each time the token was generated."""

    tfs_z: Annotated[Neutral, neutral(1, 1.0)] = None
    typical_p: Annotated[Neutral, neutral(1, 1.0)] = None
    mirostat: Annotated[Neutral, neutral(0)] = None
    penalize_newline: Annotated[Neutral, neutral(True)] = None
    logits_all: Annotated[Neutral, neutral(False)] = None
    vocab_only: Annotated[Neutral, neutral(False)] = None
    embedding_only: Annotated[Neutral, neutral(False)] = None
    mirostat_tau: Unused = None
    mirostat_eta: Unused = None
    num_ctx: Unused = None  # the server sets the context length; a longer prompt is refused, where Ollama truncates it
    num_keep: Unused = None
    num_batch: Unused = None
    num_gpu: Unused = None
    num_thread: Unused = None
    main_gpu: Unused = None
    low_vram: Unused = None
    f16_kv: Unused = None
    numa: Unused = None
    use_mmap: Unused = None
    use_mlock: Unused = None

    @model_validator(mode="after")
    def _penalties_look_at_the_whole_text(self) -> Options:
        penalised = self.repeat_penalty not in (None, 1) or self.presence_penalty or self.frequency_penalty
        if penalised and self.repeat_last_n not in (None, -1):
            raise conflict(
                "repeat_last_n", "penalties always apply to the whole text; omit 'repeat_last_n' or set it to -1"
            )
        return self

    def sampling(self) -> Sampling:
        """Return the sampling parameters of the request."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=None if self.seed == _RANDOM_SEED else self.seed,
            stop=self.stop or (),
        )

    @property
    def most_output(self) -> int | None:
        """The maximum number of tokens to generate; None: only the context length limits it."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


_DEFAULTS = Options()


def _read_format(value: Any) -> Constraint | None:
    if value == "":
        return None
    if value == "json":
        return Constraint("json_object")
    if not isinstance(value, dict):
        raise ValueError("the format must be 'json' or a JSON schema")
    return read_schema(value)


class OllamaFields(Strict):
    """The fields that both endpoints share."""

    model: ShortText
    """Name of the served model, with or without `:latest`; any other name returns status 404."""
    stream: bool | None = None
    """Stream the response as lines of JSON; true unless set."""
    options: Options | None = None
    """Sampling parameters and stop conditions."""
    think: _Think | None = None
    """Switch for thinking, or its amount: `low`, `medium` or `high`; the model's own default unless set."""
    logprobs: bool | None = None
    """Return the log-probabilities of the generated tokens."""
    top_logprobs: TopLogprobs | None = None
    """Number of most likely tokens to return at each position; needs `logprobs`."""

    format: Annotated[Constraint | None, Meaning(_read_format, {"enum": ["", "json"]}, OBJECT)] = None
    """`json`, or a JSON schema that the response must match."""
    keep_alive: Unused = None  # the model stays loaded as long as the server runs
    truncate: Unused = None
    shift: Unused = None

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> OllamaFields:
        if self.top_logprobs and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' needs 'logprobs': true")
        return self

    @property
    def given_options(self) -> Options:
        """The options, or the defaults if there are none."""
        return self.options or _DEFAULTS

    @property
    def template_arguments(self) -> dict[str, object]:
        """The arguments of the chat template."""
        match self.think:
            case True:
                return {"enable_thinking": True, "thinking": True}
            case False:
                return effort_arguments("none")
        return effort_arguments(self.think)

    @property
    def constrained(self) -> Constrained | None:
        """The constraint that the response must match; None without one."""
        return None if self.format is None else Constrained(self.format, "format")

    @property
    def counted_logprobs(self) -> int:
        """The number of log-probabilities to return, as in `SamplingParams`."""
        return (self.top_logprobs or 0) if self.logprobs else -1
