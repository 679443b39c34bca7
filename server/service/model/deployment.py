"""The deployment options, derived from the server's configuration."""

import os
from pathlib import Path

from msgspec import structs
from numaserve.server.config.serve import ServeConfig
from numaserve.workers.interface.drafters import WORKER_DRAFTERS
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.interface.step_lengths import SHORT_STEP
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.planning.activations import with_activations
from numaserve.workers.planning.needs import GIB
from numaserve.workers.planning.options import DeploymentOptions, DraftOptions
from numaserve.workers.weights.checkpoint import can_predict
from numaserve.workers.weights.hub import resolve_model


def deployment_options(config: ServeConfig, model: Path, isa: str | None, *, weights: bool = True) -> DeploymentOptions:
    """Return the options that determine cores and memory.

    `isa`: the instruction set of the kernels, which the reference backend does not use. A draft model is located and
    downloaded if missing; without `weights`, only its configuration is downloaded.
    Raises `OperatorError` for a draft model that cannot be found.
    """
    isa = isa if config.backend == "native" else None
    mtp = config.pp == 1 and _predicts(config, model, weights=weights)
    draft = _draft(config, isa, weights=weights)
    settings = structs.replace(
        config.settings,
        pooled=config.settings.pooled or config.task == "embed",
        mtp=mtp,
        max_loras=config.lora_places,
    )
    return DeploymentOptions(
        model=str(model),
        max_running_requests=config.running_limit,
        may_run_fewer=config.max_running_requests is None,
        max_step_tokens=config.chunked_prefill_size or SHORT_STEP,
        may_lengthen_steps=config.chunked_prefill_size is None,
        mem_fraction_static=config.mem_fraction_static,
        step_deadline_s=config.step_deadline_seconds,
        tp=config.tp,
        pp=config.pp,
        threads_per_worker=config.threads_per_worker,
        reserve_core=config.reserve_core,
        context_length=config.context_length,
        kv_cache_gib=config.kv_cache_gib,
        state_cache_gib=config.state_cache_gib if config.prefix_cache else 0.0,
        memory_bytes=None if config.memory_gib is None else int(config.memory_gib * GIB),
        settings=with_activations(settings, isa),
        weights_cache=_weights_cache(config),
        backend=config.backend,
        draft=draft,
        drafter=_drafter(config, draft, mtp=mtp),
        drafts=bool(config.drafters),
        prefix_cache=config.prefix_cache,
        image_store_bytes=int(config.image_memory_gib * GIB),
    )


def _drafter(config: ServeConfig, draft: DraftOptions | None, *, mtp: bool) -> str:
    """Return the workers' drafter, empty if there is none."""
    if draft is not None and draft.config.decoder.borrows:
        return "assistant"
    return next((each for each in config.drafters if each in WORKER_DRAFTERS and (mtp or each != "mtp")), "")


def _draft(config: ServeConfig, isa: str | None, *, weights: bool) -> DraftOptions | None:
    if config.draft_model is None or "draft_model" not in config.drafters:
        return None
    path = resolve_model(config.draft_model, weights=weights)
    model = load_model_config(path)
    settings = ModelSettings(
        formats=WeightFormats(linear=config.draft_quantization),
        kv_cache_dtype="bf16" if model.caches_latents else config.settings.kv_cache_dtype,
    )
    return DraftOptions(str(path), model, with_activations(settings, isa))


def _predicts(config: ServeConfig, path: Path, *, weights: bool) -> bool:
    """Return whether the predictor layer is loaded: it is named, or `auto` stands for it and the model has one."""
    if "mtp" not in config.drafters:
        return False
    return "mtp" in (config.speculative or ()) or can_predict(open_model(path, config.settings.mmproj), weights=weights)


def weights_cache_folder() -> Path:
    """Return the folder of packed weights.

    It follows the XDG base directory specification, which ignores relative paths.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError as error:
            raise OperatorError(
                "the home directory is unknown: set XDG_CACHE_HOME, or --weights-cache-gib 0"
            ) from error
    return cache / "numaserve" / "packed"


def _weights_cache(config: ServeConfig) -> WeightsCache | None:
    # Checksums of packed weights need AVX2, which the reference backend does not.
    if config.weights_cache_gib == 0 or config.backend == "reference":
        return None
    return WeightsCache(folder=str(weights_cache_folder()), limit_bytes=int(config.weights_cache_gib * GIB))
