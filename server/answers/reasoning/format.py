"""What each format of thoughts says of itself."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How a family of models marks its thoughts: `start` and `end` are around them.

    `in_template` are texts that a chat template of the family has, all of them, and `not_in_template` texts that it
    has not. `begins_inside` says that an answer begins with a thought even where the prompt does not open one.
    `anywhere` says that thoughts come between parts of the answer, not only first. `answer_start` and `answer_end`
    may be around the answer and are no part of it. `calls_end_it` says that a call ends a thought that has no `end`.
    `channels` names the format of tool calls that reads the thoughts too, where they are messages like the calls.
    """

    name: str
    start: str
    end: str
    in_template: tuple[str, ...]
    not_in_template: tuple[str, ...] = ()
    begins_inside: bool = False
    anywhere: bool = False
    answer_start: str = ""
    answer_end: str = ""
    calls_end_it: bool = False
    channels: str = ""

    def matches(self, template: str) -> bool:
        """Whether a model with this chat template thinks so."""
        return all(text in template for text in self.in_template) and not any(
            text in template for text in self.not_in_template
        )

    def begins_inside_after(self, prompt: str) -> bool:
        """Whether what follows this prompt is inside of a thought: templates open it, or close it at once."""
        end = prompt.rstrip()
        return end.endswith(self.start.rstrip()) or (self.begins_inside and not end.endswith(self.end.rstrip()))

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts that may be special tokens of the model: the parser must see them."""
        return tuple(filter(None, (self.start, self.end, self.answer_start, self.answer_end)))
