"""Messages about the cost of a rank's operations."""

from __future__ import annotations

import msgspec


class ProfileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile_request"):
    """Asks a rank what its operations have cost so far. It is answered between two steps, in the order of arrival.

    With `ceilings` the rank measures what its node allows, and answers some tenths of a second later: it measures in
    slices of some hundredths of a second, between which steps run. Every rank is asked, while no request runs.
    """

    request_id: int
    ceilings: bool = False


class OperationProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All operations of one name, over the layers. Everything but `weight_bytes` grows from step to step."""

    name: str
    format: str  # of what is multiplied, and so which peak it is measured by
    calls: int
    ns: int  # with the barrier that ends the operation
    wait_ns: int  # of `ns`, waiting for other ranks, for their imbalance or for their data
    weight_bytes: int  # that they hold
    bytes: int  # of weights and KV cache that had to be read at least; activations are not counted
    flops: int  # multiplies and adds of matrix products and attention


class Ceilings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that the cores of one rank can do, measured while all ranks measure. `read_bytes_s` is None where the
    rank holds too little memory to distinguish reading memory from reading caches."""

    isa: str
    threads: int
    read_bytes_s: float | None
    flops_s: dict[str, float]  # by the format of what is multiplied; those that the rank uses

    def better(self, other: Ceilings) -> Ceilings:
        """The best of two measurements: a shared machine changes within minutes, and only ever for the worse."""
        flops = {format: max(self.flops_s[format], other.flops_s[format]) for format in self.flops_s}
        read = max(self.read_bytes_s or 0.0, other.read_bytes_s or 0.0) or None
        return Ceilings(self.isa, self.threads, read, flops)

    @property
    def read_rate(self) -> float:
        """Bytes read per second. Raises `ValueError` where they were not measured."""
        if self.read_bytes_s is None:
            raise ValueError("the read bandwidth was not measured")
        return self.read_bytes_s


class RankProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile"):
    """A rank's answer to a `ProfileRequest`: totals since it was loaded, so that the difference of two answers
    describes the steps between them. What `native_ns` is more than its operations goes into checking and laying out
    plans."""

    request_id: int
    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[OperationProfile]
    ceilings: Ceilings | None = None
