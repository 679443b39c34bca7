"""Every metric of the server, with one method for each event.

The registry belongs to the instance, not to the module, so that a test or a second server in the process starts from
zero.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from numaserve.server.common.death import DeathReason
from numaserve.server.common.finish_reasons import FinishReason
from numaserve.server.metrics.adapter_families import AdapterFamilies
from numaserve.server.metrics.anchor_families import AnchorFamilies, SnapshotFamilies, WindowFamilies
from numaserve.server.metrics.before_scrape import BeforeScrape
from numaserve.server.metrics.families import CommonFamilies, RequestFamilies, SchedulerFamilies, WorkerFamilies
from numaserve.server.metrics.image_families import ImageFamilies
from numaserve.server.metrics.kv_disk_families import KvDiskFamilies
from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.metrics.labels import IMAGE_CODES, Refusal, Stage, StepKind
from numaserve.server.metrics.series import Series
from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

_PROMPT_TOKENS = "numaserve_prompt_tokens_total"
_GENERATION_TOKENS = "numaserve_generation_tokens_total"


class Metrics:
    """All counters, gauges and histograms of one server. Methods may be called from any thread.

    Every series but those of the process carries `model_name`, the (first) name under which the model is served.
    """

    def __init__(self, model_name: str) -> None:
        # The `_created` series would double the number of series, and hardly any tool reads them. The switch is global,
        # and the process has no other metrics.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._before_scrape = BeforeScrape()
        self.registry.register(self._before_scrape)  # first: collected before the gauges that it sets
        ProcessCollector(registry=self.registry)
        self._series = series = Series(self.registry, {"model_name": model_name})
        self._requests = RequestFamilies(series)
        self._scheduler = SchedulerFamilies(series)
        self._workers = WorkerFamilies(series)
        self._common = CommonFamilies(Series(self.registry, {"model_name": model_name, "engine": "0"}))

    def before_scrape(self, callback: Callable[[], None]) -> None:
        """Set the `callback` that sets the gauges before each scrape, in the thread of the scrape."""
        self._before_scrape.callback = callback

    def describe(self, *, version: str, model: str, isa: str, tp: int) -> None:
        """Set the labels of `numaserve_info`; called again when a restart changes them."""
        self._workers.info.info({"version": version, "model": model, "isa": isa, "tp": str(tp)})

    def describe_cache(self, *, page_size: int, num_pages: int, dtype: str, prefix_cache: bool) -> None:
        """Set the labels of `vllm:cache_config_info`, a subset of vLLM's. `page_size` is in tokens."""
        self._common.cache_config.info(
            {
                "block_size": str(page_size),
                "num_gpu_blocks": str(num_pages),
                "cache_dtype": dtype,
                "enable_prefix_caching": str(prefix_cache),
            }
        )

    def request_scheduled(self, *, queue_seconds: float, prompt_tokens: int) -> None:
        """Count a request that leaves the queue for the first time (not after a retraction)."""
        self._requests.queue_time.observe(queue_seconds)
        self._requests.prompt_tokens.inc(prompt_tokens)
        self._requests.prompt_length.observe(prompt_tokens)

    def first_token(self, *, since_admitted: float, since_scheduled: float) -> None:
        """Count the first token of a sequence: seconds since it was admitted, and since it first left the queue."""
        self._requests.time_to_first_token.observe(since_admitted)
        self._requests.prefill_time.observe(since_scheduled)
        self._requests.generation_tokens.inc()

    def inter_token(self, seconds: float) -> None:
        """Count a further token, `seconds` after the one before it."""
        self._requests.inter_token_latency.observe(seconds)
        self._requests.generation_tokens.inc()

    def request_finished(self, reason: FinishReason, *, e2e_seconds: float) -> None:
        """Count an admitted sequence that ended."""
        self._requests.outcomes[reason].inc()
        self._requests.e2e_latency.observe(e2e_seconds)

    def output_finished(self, *, tokens: int, decode_seconds: float) -> None:
        """Count the output of a sequence that ended: `tokens`, the first of them `decode_seconds` before the end."""
        self._requests.output_length.observe(tokens)
        self._requests.decode_time.observe(decode_seconds)

    def nan_logits(self) -> None:
        """Count a sequence whose logits were not numbers."""
        self._requests.nan_logits.inc()

    def resumed(self, sequences: int) -> None:
        """Count sequences that had begun and survived the death of their workers."""
        self._requests.resumed.inc(sequences)

    def workers_restarted(self, reason: DeathReason) -> None:
        """Count a restart of all workers, by the cause of the previous workers' death."""
        self._workers.restarts[reason].inc()

    def resume_pause(self, seconds: float) -> None:
        """Count an outage, from the death of the workers to the first answer of the new ones."""
        self._workers.resume_pause.observe(seconds)

    def dropped(self) -> None:
        """Count a sequence that its constraint has ended."""
        self._requests.dropped.inc()

    def late_mask(self) -> None:
        """Count a mask that was not ready when it was needed."""
        self._requests.late_masks.inc()

    def mask(self, seconds: float) -> None:
        """Count a mask and the seconds that it took to make."""
        self._requests.mask.observe(seconds)

    def request_refused(self, reason: Refusal) -> None:
        """Count a request that was refused before it became a sequence."""
        self._requests.outcomes[reason].inc()

    def request_over_limit(self, key_name: str) -> None:
        """Count a request that was refused because of a limit of its key, which the operator calls `key_name`."""
        self.request_refused("over_limit")
        self._requests.over_limit(key_name).inc()

    def requests(self, *, waiting: int, running: int) -> None:
        """Set the current numbers of waiting and running sequences."""
        self._scheduler.requests["waiting"].set(waiting)
        self._scheduler.requests["running"].set(running)
        self._common.waiting.set(waiting)
        self._common.running.set(running)

    def pages(self, *, free: int, cached: int, active: int) -> None:
        """Set the numbers of KV pages: unused, cached for their prefix only, and used by a running sequence.

        Only the last ones count as in use: cached pages are evicted as soon as they are needed.
        """
        self._scheduler.kv_pages["free"].set(free)
        self._scheduler.kv_pages["cached"].set(cached)
        self._scheduler.kv_pages["active"].set(active)
        usage = active / (free + cached + active)
        self._scheduler.kv_usage.set(usage)
        self._common.kv_usage.set(usage)

    def prefix_cache(self, *, queried_tokens: int, hit_tokens: int) -> None:
        """Count prompt tokens that were looked up in the prefix cache, and those found."""
        self._scheduler.cache_queries.inc(queried_tokens)
        self._scheduler.cache_hits.inc(hit_tokens)

    def snapshots(self, *, free: int, cached: int, active: int) -> None:
        """Set the numbers of snapshots: unused, cached with pages, and held by a running sequence."""
        self._snapshots.snapshots["free"].set(free)
        self._snapshots.snapshots["cached"].set(cached)
        self._snapshots.snapshots["active"].set(active)

    def window_pages(self, *, free: int, cached: int, active: int) -> None:
        """Set the numbers of pages of all window tables: unused, held by anchors alone, used by a running sequence."""
        self._windows.pages["free"].set(free)
        self._windows.pages["cached"].set(cached)
        self._windows.pages["active"].set(active)

    def anchors(self, *, hits: int, unanchored_tokens: int) -> None:
        """Count prompts that continued from an anchor, and tokens of cached pages that no anchor allowed to use."""
        self._anchors.hits.inc(hits)
        self._anchors.unanchored.inc(unanchored_tokens)

    def kv_disk(self, figures: DiskFigures) -> None:
        """Set the state of the disk tier, and count what is new in `figures`."""
        self._kv_disk.show(figures)

    def images(self, *, found: int, computed: int, tower_seconds: float) -> None:
        """Count tiles whose features were found or computed, and the time of the vision tower."""
        self._images.tiles["found"].inc(found)
        self._images.tiles["computed"].inc(computed)
        self._images.tower_seconds.inc(tower_seconds)

    def image_found(self) -> None:
        """Count an image of a request whose pixels were in memory."""
        self._images.images["found"].inc()

    def image_decoded(self, seconds: float) -> None:
        """Count an image of a request that was decoded, and the time."""
        self._images.images["decoded"].inc()
        self._images.decode_seconds.observe(seconds)

    def image_refused(self, code: str) -> None:
        """Count an image that the model did not see; a code that is not of images counts nothing."""
        for known in IMAGE_CODES:
            if code == known:
                self._images.refused[known].inc()

    def adapters(self, names: Sequence[str], *, places: int) -> None:
        """Set the names of the loaded LoRA adapters, and the number of adapters that have memory."""
        self._adapters.describe(names, places)

    def adapter_finished(self, name: str, *, prompt_tokens: int, generated: int) -> None:
        """Count an ended sequence of a LoRA adapter."""
        self._adapters.requests.series(name).inc()
        self._adapters.prompt_tokens.series(name).inc(prompt_tokens)
        self._adapters.generation_tokens.series(name).inc(generated)

    def adapter_gone(self, name: str) -> None:
        """Remove the series of an unloaded LoRA adapter."""
        self._adapters.remove(name)

    def drafted(self, drafter: str, *, accepted: int, rejected: int) -> None:
        """Count draft tokens that steps verified."""
        self._scheduler.draft_tokens[drafter, "accepted"].inc(accepted)
        self._scheduler.draft_tokens[drafter, "rejected"].inc(rejected)

    def retracted(self, sequences: int) -> None:
        """Count sequences that were sent back to the queue."""
        self._scheduler.retractions.inc(sequences)

    def step(self, kind: StepKind, seconds: float, stages: Mapping[Stage, float], *, tokens: int) -> None:
        """Count a step of `tokens` tokens, which took `seconds`, and its `stages`, as far as they are known."""
        self._workers.step[kind].observe(seconds)
        self._workers.step_tokens.observe(tokens)
        for stage, duration in stages.items():
            self._workers.stage[stage].observe(duration)

    def worker(
        self,
        rank: int,
        *,
        up: bool,
        rss_bytes: int | None = None,
        misplaced_pages: int | None = None,
        state_bytes: int | None = None,
    ) -> None:
        """Set the state of a worker; an unknown figure keeps its last value."""
        label = str(rank)
        self._workers.up(label).set(1 if up else 0)
        self._workers.starved(label)  # a rate needs the 0 too
        if rss_bytes is not None:
            self._workers.rss(label).set(rss_bytes)
        if misplaced_pages is not None:
            self._workers.misplaced(label).set(misplaced_pages)
        if state_bytes is not None:
            self._workers.states(label).set(state_bytes)

    def starved(self, rank: int, seconds: float) -> None:
        """Count seconds for which a late worker waited for a processor."""
        self._workers.starved(str(rank)).inc(seconds)

    def memory_bound(self, rank: int, bound: bool) -> None:
        """Set whether the memory of a worker is bound to its node."""
        self._workers.bound(str(rank)).set(bound)

    def tokens(self) -> tuple[int, int]:
        """Return the prompt tokens of scheduled requests and the generated tokens since the server started."""
        told = self.registry.restricted_registry([_PROMPT_TOKENS, _GENERATION_TOKENS])
        counts = {sample.name: int(sample.value) for family in told.collect() for sample in family.samples}
        return counts[_PROMPT_TOKENS], counts[_GENERATION_TOKENS]

    @cached_property
    def _snapshots(self) -> SnapshotFamilies:
        """The metrics that only models with recurrent states have."""
        return SnapshotFamilies(self._series)

    @cached_property
    def _windows(self) -> WindowFamilies:
        """The metrics that only models with window tables have."""
        return WindowFamilies(self._series)

    @cached_property
    def _anchors(self) -> AnchorFamilies:
        """The metrics that both have."""
        return AnchorFamilies(self._series)

    @cached_property
    def _kv_disk(self) -> KvDiskFamilies:
        """The metrics that only servers with the disk tier have."""
        return KvDiskFamilies(self._series)

    @cached_property
    def _images(self) -> ImageFamilies:
        """The metrics that only models that read images have."""
        return ImageFamilies(self._series)

    @cached_property
    def _adapters(self) -> AdapterFamilies:
        """The metrics that only servers with memory for LoRA adapters have."""
        return AdapterFamilies(self._series, self.registry)

    def render(self) -> tuple[bytes, str]:
        """Return the body and the content type of GET /metrics."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4
