"""The values of the metrics' labels."""

from typing import Literal, get_args

from numaserve.server.common.death import DeathReason
from numaserve.server.common.finish_reasons import FinishReason

PageState = Literal["free", "cached", "active"]
RequestState = Literal["waiting", "running"]
StepKind = Literal["prefill", "decode", "mixed"]
Stage = Literal["schedule", "send", "native", "all_reduce", "mask_wait", "receive", "detokenize"]
DraftOutcome = Literal["accepted", "rejected"]
FeatureSource = Literal["found", "computed"]
PixelSource = Literal["found", "decoded"]
ImageCode = Literal["image_url_unsupported", "invalid_image", "image_too_large", "too_many_images", "image_not_stored"]
DiskTierState = Literal["opening", "open", "off"]
DiskDirection = Literal["read", "written"]
DiskRecordKind = Literal["pages", "anchors"]
DiskProblemKind = Literal["checksum", "replaced", "short", "io", "full", "cancelled"]
Refusal = Literal["invalid", "unauthorized", "too_large", "too_long", "queue_full", "over_limit", "not_ready"]

PAGE_STATES: tuple[PageState, ...] = get_args(PageState)
REQUEST_STATES: tuple[RequestState, ...] = get_args(RequestState)
STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
DRAFT_OUTCOMES: tuple[DraftOutcome, ...] = get_args(DraftOutcome)
FEATURE_SOURCES: tuple[FeatureSource, ...] = get_args(FeatureSource)
PIXEL_SOURCES: tuple[PixelSource, ...] = get_args(PixelSource)
IMAGE_CODES: tuple[ImageCode, ...] = get_args(ImageCode)
STAGES: tuple[Stage, ...] = get_args(Stage)
FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
DEATH_REASONS: tuple[DeathReason, ...] = get_args(DeathReason)
DISK_TIER_STATES: tuple[DiskTierState, ...] = get_args(DiskTierState)
DISK_DIRECTIONS: tuple[DiskDirection, ...] = get_args(DiskDirection)
DISK_RECORD_KINDS: tuple[DiskRecordKind, ...] = get_args(DiskRecordKind)
DISK_PROBLEMS: tuple[DiskProblemKind, ...] = get_args(DiskProblemKind)
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
