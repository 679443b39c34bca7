"""The values of labels."""

from __future__ import annotations

from typing import Literal

from numaserve.server.engine.types import FinishReason

PageState = Literal["free", "cached", "active"]
RequestState = Literal["waiting", "running"]
Phase = Literal["prefill", "decode", "mixed"]
Stage = Literal["schedule", "send", "native", "all_reduce", "receive", "detokenize"]
Refusal = Literal["invalid", "unauthorized", "too_large", "too_long", "queue_full", "not_ready"]

PAGE_STATES: tuple[PageState, ...] = ("free", "cached", "active")
REQUEST_STATES: tuple[RequestState, ...] = ("waiting", "running")
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")
STAGES: tuple[Stage, ...] = ("schedule", "send", "native", "all_reduce", "receive", "detokenize")
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")
REFUSALS: tuple[Refusal, ...] = ("invalid", "unauthorized", "too_large", "too_long", "queue_full", "not_ready")
