"""The reasons for which an answer, or a request, ends."""

from typing import Literal

EndReason = Literal["stop", "length"]  # of an answer
FinishReason = Literal[EndReason, "abort", "error", "timeout"]  # of a request
