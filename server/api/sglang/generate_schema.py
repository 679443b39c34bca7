"""The body of POST /generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.api.fields import (
    MAX_INT,
    Neutral,
    Priority,
    ShortText,
    Strict,
    Text,
    TokenId,
    TopLogprobs,
    Unused,
    conflict,
    neutral,
)
from numaserve.server.api.generation.asked import Asked, Texts
from numaserve.server.api.limits import ApiLimits
from numaserve.server.api.sglang.sampling_schema import DEFAULT_MAX_NEW_TOKENS, SamplingParameters
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

MAX_PROMPTS = 8192
MAX_NAMED_TOKENS = 256
_DEFAULTS = SamplingParameters()


def _kind_of_text(value: object) -> str:
    return "[texts]" if isinstance(value, list) else "[text]"


def _kind_of_ids(value: object) -> str:
    return "[lists]" if isinstance(value, list) and value and isinstance(value[0], list) else "[ids]"


# Tags, so that an error is about what was sent; with brackets, so that `param_of` leaves them out.
_Texts = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS), Tag("[texts]")],
    Discriminator(_kind_of_text),
]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_InputIds = Annotated[
    Annotated[_Ids, Tag("[ids]")] | Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS), Tag("[lists]")],
    Discriminator(_kind_of_ids),
]
RequestId = Annotated[Text, StringConstraints(min_length=1, max_length=256)]


class SGLangGenerateRequest(Strict):
    """Texts or token ids, to be continued as they are."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Tokens of several prompts, few of which are as long as they may be."""
        return 16 * limits.context_length

    text: _Texts | None = None
    """A text, or a list of some; or else `input_ids`."""
    input_ids: _InputIds | None = None
    """Token ids, or a list of lists of them."""
    sampling_params: SamplingParameters | None = None
    """How to sample; the same for all prompts."""
    model: ShortText | None = None
    """A served name; another one is a 404."""
    rid: RequestId | None = None
    """The id of the request, for /abort_request; one that is taken is refused. Random unless set."""
    stream: bool | None = None
    """Answer in events, each with the whole text so far."""
    return_logprob: bool | None = None
    """Give log-probabilities of the answer's tokens."""
    logprob_start_len: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """The prompt's too, from this position on; -1, the default, none of them."""
    top_logprobs_num: TopLogprobs | None = None
    """And so many of the likeliest beside each."""
    token_ids_logprob: Annotated[list[TokenId], Field(max_length=MAX_NAMED_TOKENS)] | None = None
    """And those of these tokens at each position of the answer."""
    return_text_in_logprobs: bool | None = None
    """Give the text of tokens beside their log-probabilities."""
    cache_salt: Annotated[Text, StringConstraints(max_length=256)] | None = None
    """Cached prefixes are shared only with requests of the same salt, and of the same cache group of API keys."""
    priority: Priority | None = None
    """Which of the client's own requests begins earlier: the one with the higher number, as in SGLang; 0 unless set."""

    input_embeds: Annotated[Neutral, neutral()] = None
    image_data: Annotated[Neutral, neutral([], media="images")] = None
    audio_data: Annotated[Neutral, neutral([], media="audio")] = None
    video_data: Annotated[Neutral, neutral([], media="videos")] = None
    modalities: Annotated[Neutral, neutral([])] = None
    lora_path: Annotated[Neutral, neutral()] = None
    custom_logit_processor: Annotated[Neutral, neutral()] = None
    session_params: Annotated[Neutral, neutral()] = None
    return_hidden_states: Annotated[Neutral, neutral(False)] = None
    return_routed_experts: Annotated[Neutral, neutral(False)] = None
    bootstrap_host: Annotated[Neutral, neutral()] = None
    bootstrap_room: Annotated[Neutral, neutral()] = None
    bootstrap_port: Unused = None
    data_parallel_rank: Annotated[Neutral, neutral(0)] = None
    routed_dp_rank: Annotated[Neutral, neutral(0)] = None
    log_metrics: Unused = None
    background: Unused = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> SGLangGenerateRequest:
        if (self.text is None) == (self.input_ids is None):
            raise conflict("text", "exactly one of 'text' and 'input_ids' is needed")
        if (self.top_logprobs_num or self.token_ids_logprob) and not self.return_logprob:
            param = "top_logprobs_num" if self.top_logprobs_num else "token_ids_logprob"
            raise conflict(param, f"'{param}' needs 'return_logprob': true")
        if self.token_ids_logprob and self.scores_prompt:
            raise conflict(
                "token_ids_logprob", "'token_ids_logprob' covers generated tokens only; leave out 'logprob_start_len'"
            )
        return self

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are wanted."""
        return self.return_logprob is True and (self.logprob_start_len or 0) >= 0 and self.logprob_start_len is not None

    @property
    def parameters(self) -> SamplingParameters:
        """How to sample, or what says nothing."""
        return self.sampling_params or _DEFAULTS

    @property
    def is_single(self) -> bool:
        """Whether the answer is one object, not a list."""
        single = isinstance(self.text, str) or (self.input_ids is not None and isinstance(self.input_ids[0], int))
        return single and (self.parameters.n or 1) == 1

    def asked(self) -> Asked:
        """What the client asks for."""
        return Asked(
            self._texts(),
            self.parameters.sampling(self.cache_salt),
            model=self.model,
            max_tokens=self.parameters.max_new_tokens,
            default_max_tokens=DEFAULT_MAX_NEW_TOKENS,
            logprobs=(self.top_logprobs_num or 0) if self.return_logprob else -1,
            prompt_logprobs=self.scores_prompt,
            token_ids_logprob=self.token_ids_logprob or (),
            constrained=self.parameters.constrained(),
            priority=-(self.priority or 0),
        )

    def _texts(self) -> Texts:
        if self.text is not None:
            return Texts([self.text] if isinstance(self.text, str) else self.text, param="text")
        ids = self.input_ids or []
        lists = [each for each in ids if isinstance(each, list)]
        return Texts(lists or [[each for each in ids if isinstance(each, int)]], param="input_ids")
