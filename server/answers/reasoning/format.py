"""The description of one format of thoughts."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """The marks that a family of models writes around its thoughts: each thought stands between `start` and `end`.

    A chat template of the family contains all texts of `in_template` and none of `not_in_template`. `begins_inside`: an
    answer begins with a thought even if the prompt opens none. `anywhere`: thoughts also come between parts of the
    answer, not only first. `answer_start` and `answer_end` may surround the answer and are no part of it.
    `calls_end_it`: a call ends a thought that has no `end`. `channels` names the format of tool calls that also reads
    the thoughts, for models that write both as messages.
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
        """Return whether a model with this chat template uses this format."""
        return all(text in template for text in self.in_template) and not any(
            text in template for text in self.not_in_template
        )

    def begins_inside_after(self, prompt: str) -> bool:
        """Return whether the text after this prompt begins inside a thought: templates open a thought, or close it at
        once."""
        end = prompt.rstrip()
        return end.endswith(self.start.rstrip()) or (self.begins_inside and not end.endswith(self.end.rstrip()))

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts that may be special tokens of the model; the parser has to see them."""
        return tuple(filter(None, (self.start, self.end, self.answer_start, self.answer_end)))
