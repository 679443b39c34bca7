"""Messages about the cost of a rank's operations."""

from __future__ import annotations

import msgspec


class ProfileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile_request"):
    """Asks a rank for the cost of its operations so far. The rank answers between two steps, in order of arrival.

    With `ceilings` the rank measures the limits of its node, and answers some tenths of a second later. It measures in
    slices of some hundredths of a second, between which steps run. Every rank is asked, while no request runs.
    """

    request_id: int
    ceilings: bool = False


class OperationProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All operations of one name, over the layers. All figures except `weight_bytes` are running totals."""

    name: str
    format: str  # of the multiplied data, which selects the peak for comparison
    calls: int
    ns: int  # including the barrier that ends the operation
    wait_ns: int  # of `ns`, waiting for other ranks, because of imbalance or for their data
    weight_bytes: int  # size of the weights that the operations use
    bytes: int  # least bytes of weights and KV cache to read
    flops: int  # multiplies and adds of matrix products and attention
    moved_bytes: int = 0  # activations that an operation without weights reads and writes; caches may hold them


class Ceilings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The peak rates of one rank's cores, measured while all ranks measure. `read_bytes_s` is None where the rank holds
    too little memory to distinguish memory reads from cache reads."""

    isa: str
    threads: int
    read_bytes_s: float | None
    flops_s: dict[str, float]  # by the format of the multiplied data; only formats that the rank uses

    def better(self, other: Ceilings) -> Ceilings:
        """Return the best of two measurements: on a shared machine, other load lowers the figures within minutes."""
        flops = {format: max(self.flops_s[format], other.flops_s[format]) for format in self.flops_s}
        read = max(self.read_bytes_s or 0.0, other.read_bytes_s or 0.0) or None
        return Ceilings(self.isa, self.threads, read, flops)

    @property
    def read_rate(self) -> float:
        """The bytes read per second. Raises `ValueError` where they were not measured."""
        if self.read_bytes_s is None:
            raise ValueError("the read bandwidth was not measured")
        return self.read_bytes_s


class RankProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile"):
    """A rank's answer to a `ProfileRequest`: totals since it was loaded. The difference of two answers describes the
    steps between them. The excess of `native_ns` over the operations' time is the checking and layout of plans."""

    request_id: int
    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[OperationProfile]
    ceilings: Ceilings | None = None
