"""Metrics whose series all carry the same labels."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

Kind = TypeVar("Kind", Counter, Gauge, Histogram, Info)
Value = TypeVar("Value", bound=str)


class Series:
    """Makes metrics in `registry`, and resolves their labels once.

    To look labels up costs as much as to count, and counting is done for every token.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def one(self, kind: type[Kind], name: str, text: str, **options: Any) -> Kind:
        """A metric that has one series."""
        return kind(name, text, tuple(self._labels), registry=self._registry, **options).labels(**self._labels)

    def each(
        self, kind: type[Kind], name: str, text: str, label: str, values: Iterable[Value], **options: Any
    ) -> dict[Value, Kind]:
        """A metric that has a series for each of `values`, from the start: rate() would miss the first event of one
        that appears with it."""
        by_value = self.by(kind, name, text, label, **options)
        return {value: by_value(value) for value in values}

    def each_of(
        self, kind: type[Kind], name: str, text: str, labels: Mapping[str, Iterable[str]]
    ) -> dict[tuple[str, ...], Kind]:
        """The same for every combination of values of several labels, each given with its values."""
        metric = kind(name, text, (*self._labels, *labels), registry=self._registry)
        return {
            values: metric.labels(**self._labels, **dict(zip(labels, values, strict=True)))
            for values in itertools.product(*labels.values())
        }

    def by(self, kind: type[Kind], name: str, text: str, label: str, **options: Any) -> Callable[[str], Kind]:
        """A metric that has a series for every value that is asked for."""
        metric = kind(name, text, (*self._labels, label), registry=self._registry, **options)
        return lambda value: metric.labels(**self._labels, **{label: value})
