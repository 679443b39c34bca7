import ctypes
import logging
import mmap
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.process import numa

PAGES = 64
NBYTES = PAGES * mmap.PAGESIZE


@pytest.fixture(autouse=True)
def forget_what_was_found() -> Iterator[None]:
    yield
    numa._function.cache_clear()
    numa._misplaced_in_mappings.cache_clear()
    numa._refused.clear()


@pytest.fixture
def touched() -> Iterator[int]:
    """The address of `PAGES` resident pages."""
    with mmap.mmap(-1, NBYTES) as memory:
        view = ctypes.c_char.from_buffer(memory)
        ctypes.memset(ctypes.addressof(view), 1, NBYTES)
        yield ctypes.addressof(view)
        del view


@pytest.fixture(params=["libnuma", "raw system calls"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the kernel, and only where the kernel has NUMA."""
    if request.param == "raw system calls":
        without_libnuma(monkeypatch)
    if not numa.bind_range(0, 0, 0):
        pytest.skip("the kernel has no NUMA system calls")


def without_libnuma(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ctypes.CDLL

    def missing(name: str | None, **options: Any) -> ctypes.CDLL:
        if name is not None:
            raise OSError(f"{name}: not found")
        return real(name, **options)

    monkeypatch.setattr(ctypes, "CDLL", missing)


@pytest.mark.usefixtures("route")
def test_pages_on_their_node_are_not_misplaced(touched: int) -> None:
    assert numa.bind_range(touched, NBYTES, 0)
    assert numa.misplaced_pages([(touched, NBYTES)], 0) == 0


@pytest.mark.usefixtures("route")
def test_pages_on_another_node_are_counted(touched: int) -> None:
    assert numa.bind_range(touched, NBYTES, 0)
    assert numa.misplaced_pages([(touched, NBYTES)], 1) == PAGES
    assert numa.misplaced_pages([(touched + 1, NBYTES - 1)], 1) == PAGES


@pytest.mark.usefixtures("route")
def test_a_sample_is_scaled_up_to_the_whole_range(touched: int) -> None:
    assert numa.bind_range(touched, NBYTES, 0)
    assert numa.misplaced_pages([(touched, NBYTES)], 1, sample=5) == PAGES


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("sample", [None, PAGES, 7])
def test_pages_of_several_ranges_are_counted_together(touched: int, sample: int | None) -> None:
    assert numa.bind_range(touched, NBYTES, 0)
    page = mmap.PAGESIZE
    ranges = [(touched, page), (touched + page, 0), (touched + 2 * page, NBYTES - 2 * page)]
    assert numa.misplaced_pages(ranges, 1, sample) == PAGES - 1
    assert numa.misplaced_pages(ranges, 0, sample) == 0
    assert numa.misplaced_pages([], 1, sample) == 0


@pytest.mark.usefixtures("route")
def test_untouched_pages_are_not_misplaced() -> None:
    with mmap.mmap(-1, NBYTES) as memory:
        view = ctypes.c_char.from_buffer(memory)
        assert numa.misplaced_pages([(ctypes.addressof(view), NBYTES)], 1) == 0
        del view


@pytest.mark.usefixtures("route")
def test_a_node_that_does_not_exist_is_refused(touched: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        numa.bind_range(touched, NBYTES, 1023)
    with pytest.raises(OSError, match="no such NUMA node"):
        numa.bind_range(touched, NBYTES, 5000)


def _bound_process(node: int) -> None:
    raise SystemExit(0 if numa.bind_memory_to(node) else 77)


def test_a_process_binds_all_its_memory_to_a_node() -> None:
    process = multiprocessing.get_context("spawn").Process(target=_bound_process, args=(0,))
    process.start()
    process.join()
    assert process.exitcode in (0, 77)  # 77: a kernel without NUMA


def test_where_the_kernel_binds_nothing_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    if not numa.bind_range(0, 0, 0):
        pytest.skip("the kernel has no NUMA system calls")
    numa.warn_of_refusal()
    assert (numa.refusal(), caplog.records) == ("", [])


def test_a_machine_without_the_calls_is_a_no_op_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, touched: int
) -> None:
    without_libnuma(monkeypatch)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    numa._function.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not numa.bind_memory_to(0)
        assert not numa.bind_range(touched, NBYTES, 0)
        numa.warn_of_refusal()
    assert "riscv64" in numa.refusal()
    assert "riscv64" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.skipif(not numa._MAPPINGS.exists(), reason="the kernel has no NUMA")
def test_where_pages_cannot_be_asked_for_their_mapping_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, touched: int
) -> None:
    without_libnuma(monkeypatch)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    numa._function.cache_clear()
    assert numa.misplaced_pages([(touched, NBYTES)], 0) == 0
    assert numa.misplaced_pages([(touched, NBYTES)], 1) >= PAGES
    told = tmp_path / "numa_maps"
    told.write_text(
        "1000 default heap anon=3 N0=3 kernelpagesize_kB=4\n"
        "9000 default anon=9 dirty=9 N0=2 N1=7 kernelpagesize_kB=4\n"
        "20000 bind:0 huge anon=5 N1=5 kernelpagesize_kB=2048\n"
        "90000 default stack anon=1 N1=1 kernelpagesize_kB=4\n"
    )
    monkeypatch.setattr(numa, "_MAPPINGS", told)
    assert numa.misplaced_pages([(0x9000, 0x1000)], 0) == 7
    assert numa.misplaced_pages([(0xA000, 0x1000), (0x20000, 0x1000), (0x90000, 0)], 0) == 7 + 5 * 512
    assert numa.misplaced_pages([(0x1000, 0x9000)], 1) == 3 + 2
    monkeypatch.setattr(numa, "_MAPPINGS", tmp_path / "none")
    assert numa.misplaced_pages([(0x9000, 0x2000)], 0) == 0
