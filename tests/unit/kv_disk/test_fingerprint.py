"""The fingerprint: what begins cold, and what does not."""

from collections.abc import Callable

import pytest
from msgspec import structs
from numaserve.server.kv_disk import fingerprint
from numaserve.server.kv_disk.fingerprint import changes_between, fingerprint_of, launch_facts
from numaserve.workers.interface.protocol import DraftModel, Launch, WeightsCache
from numaserve.workers.interface.settings import BF16_WEIGHTS, DEFAULT_SETTINGS, ModelSettings

from tests.support.plan_limits import plan_limits

CAPACITY = plan_limits(16, 512).capacity
LAUNCH = Launch(0, 2, "/m", [[0], [1]], [0, 0], [1, 1], CAPACITY, -1, 0, 60.0)
# Another value of each field of the settings.
OTHER = ModelSettings(
    formats=BF16_WEIGHTS,
    kv_cache_dtype="int8",
    expert_parallel=True,
    context_parallel_from=100,
    mmproj="/mmproj.gguf",
    max_loras=3,
    max_lora_rank=32,
    max_image_pixels=1 << 22,
    pooled=True,
    mtp=True,
    stage=1,
    stages=2,
)


def changed(new: Launch, **others: object) -> list[str]:
    def of(launch: Launch, contents: bytes = b"c", pages: list[int] | None = None) -> dict[str, bytes]:
        return fingerprint_of(contents, launch_facts(launch), pages or [4096, 4096], [0, 0])

    return changes_between(of(LAUNCH), of(new, **others))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ModelSettings.__struct_fields__)
def test_every_setting_counts_but_those_that_name_files_and_memory(name: str) -> None:
    other = getattr(OTHER, name)
    assert other != getattr(DEFAULT_SETTINGS, name)
    new = structs.replace(LAUNCH, settings=structs.replace(DEFAULT_SETTINGS, **{name: other}))
    assert changed(new) == ([] if name in ("mmproj", "max_loras") else ["settings"])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("world_size", 3, ["world size"]),
        ("weights", [2, 1], ["shares"]),
        ("backend", "reference", ["backend"]),
        ("drafter", "mtp", ["drafter"]),
        ("draft", DraftModel("/draft", DEFAULT_SETTINGS), ["draft"]),
        ("rank", 1, []),
        ("model", "/elsewhere", []),
        ("cpus", [[4], [5]], []),
        ("capacity", structs.replace(CAPACITY, num_pages=9, context_length=64, max_step_tokens=64), []),
        ("weights_cache", WeightsCache("/packed", 1), []),
        ("blocking", {"m": 4}, []),
        ("disk_folder", "/kv", []),
    ],
)
def test_what_changes_a_bit_counts_and_no_size_or_place_does(name: str, value: object, expected: list[str]) -> None:
    assert changed(structs.replace(LAUNCH, **{name: value})) == expected


def test_content_sizes_and_the_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed(LAUNCH, contents=b"other") == ["checkpoint"]
    assert changed(LAUNCH, pages=[4096, 8192]) == ["record sizes"]
    before = fingerprint_of(b"c", {}, [1], [0])
    changes: list[tuple[str, Callable[[], object] | int, str]] = [
        ("NUMERICS_VERSION", 99, "numerics version"),
        ("table_values", lambda: b"of another libm", "machine"),
    ]
    for name, value, expected in changes:
        with monkeypatch.context() as patch:
            patch.setattr(fingerprint, name, value)
            assert changes_between(before, fingerprint_of(b"c", {}, [1], [0])) == [expected]
