"""The body of POST /generate."""

from __future__ import annotations

from typing import Annotated

from numaserve.server.generation.asked import Asked, Texts
from numaserve.server.generation.conversation.images import Image, Images
from numaserve.server.http.fields.types import (
    MAX_INT,
    AdapterName,
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
from numaserve.server.http.limits import ApiLimits
from numaserve.server.surfaces.image_parts import images_of
from numaserve.server.surfaces.sglang.sampling_schema import DEFAULT_MAX_NEW_TOKENS, SamplingParameters
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

MAX_PROMPTS = 8192
MAX_NAMED_TOKENS = 256
_DEFAULTS = SamplingParameters()


def _kind_of_text(value: object) -> str:
    return "[texts]" if isinstance(value, list) else "[text]"


def _kind_of_ids(value: object) -> str:
    return "[lists]" if isinstance(value, list) and value and isinstance(value[0], list) else "[ids]"


# Tags, so that an error names the kind that was sent; with brackets, so that `param_of` leaves them out.
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
    """The body of POST /generate: texts or token ids to continue verbatim."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of several prompts, few of which have the maximum length."""
        return 16 * limits.context_length

    text: _Texts | None = None
    """Prompt, or a list of prompts; required unless `input_ids` is set."""
    input_ids: _InputIds | None = None
    """Prompt as a list of token ids, or several prompts as a list of such lists."""
    sampling_params: SamplingParameters | None = None
    """Sampling parameters and stop conditions for all prompts."""
    model: ShortText | None = None
    """Name of the served model; any other name returns status 404."""
    rid: RequestId | None = None
    """Id of the request, for /abort_request; must not be the id of a running request. Random unless set."""
    stream: bool | None = None
    """Stream the response as server-sent events, each with the whole text so far."""
    return_logprob: bool | None = None
    """Return the log-probabilities of the generated tokens."""
    logprob_start_len: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """First prompt position whose log-probability is returned; -1, the default, returns none for the prompt."""
    top_logprobs_num: TopLogprobs | None = None
    """Number of most likely tokens to return at each position."""
    token_ids_logprob: Annotated[list[TokenId], Field(max_length=MAX_NAMED_TOKENS)] | None = None
    """Ids of tokens whose log-probabilities are returned at each generated position."""
    return_text_in_logprobs: bool | None = None
    """Return the text of tokens with their log-probabilities."""
    cache_salt: Annotated[Text, StringConstraints(max_length=256)] | None = None
    """Salt of the prefix cache. A request shares cached prefixes only with requests of the same salt and the same cache
    group of API keys."""
    priority: Priority | None = None
    """Priority among the client's own requests; higher numbers start first, as in SGLang; 0 unless set."""
    lora_path: AdapterName | None = None
    """Name of a loaded LoRA adapter for all prompts; `model` can name the adapter instead."""

    input_embeds: Annotated[Neutral, neutral()] = None
    image_data: Annotated[Images, images_of("image_data")] | None = None
    """Image in base64 or as a URL `data:image/png;base64,...`, or a list of images, for a single `text` that has the
    model's placeholder for each."""
    audio_data: Annotated[Neutral, neutral([], media="audio")] = None
    video_data: Annotated[Neutral, neutral([], media="videos")] = None
    modalities: Annotated[Neutral, neutral([])] = None
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
        if self._images and not isinstance(self.text, str):
            raise conflict("image_data", "'image_data' needs a single 'text'; send one request for each text")
        if (self.top_logprobs_num or self.token_ids_logprob) and not self.return_logprob:
            param = "top_logprobs_num" if self.top_logprobs_num else "token_ids_logprob"
            raise conflict(param, f"'{param}' needs 'return_logprob': true")
        if self.token_ids_logprob and self.scores_prompt:
            raise conflict(
                "token_ids_logprob", "'token_ids_logprob' covers generated tokens only; leave out 'logprob_start_len'"
            )
        return self

    @property
    def _images(self) -> list[Image]:
        return [] if self.image_data is None else self.image_data.images

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are requested."""
        return self.return_logprob is True and (self.logprob_start_len or 0) >= 0 and self.logprob_start_len is not None

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters, or the defaults if the request has none."""
        return self.sampling_params or _DEFAULTS

    @property
    def is_single(self) -> bool:
        """Whether the answer is one object instead of a list."""
        single = isinstance(self.text, str) or (self.input_ids is not None and isinstance(self.input_ids[0], int))
        return single and (self.parameters.n or 1) == 1

    def asked(self) -> Asked:
        """Return the request in the form that all APIs share."""
        return Asked(
            self._texts(),
            self.parameters.sampling(self.cache_salt),
            model=self.model,
            lora=self.lora_path,
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
            texts = [self.text] if isinstance(self.text, str) else self.text
            return Texts(texts, param="text", images=self._images)
        ids = self.input_ids or []
        lists = [each for each in ids if isinstance(each, list)]
        return Texts(lists or [[each for each in ids if isinstance(each, int)]], param="input_ids")
