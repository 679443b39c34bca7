"""Metrics whose series all have the same labels."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

Kind = TypeVar("Kind", Counter, Gauge, Histogram, Info)
Value = TypeVar("Value", bound=str)


class RemovableCounter:
    """A counter with a series for every value that is requested, until the series is removed."""

    def __init__(self, metric: Counter, labels: Mapping[str, str], label: str) -> None:
        self._metric = metric
        self._labels = labels
        self._label = label

    def series(self, value: str) -> Counter:
        """Return the series of a value."""
        return self._metric.labels(**self._labels, **{self._label: value})

    def remove(self, value: str) -> None:
        """Remove the series of a value."""
        self._metric.remove(*self._labels.values(), value)


class Series:
    """Makes metrics in `registry`, and resolves their labels once.

    A lookup of labels costs as much as counting, and every token is counted.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def one(self, kind: type[Kind], name: str, text: str, **options: Any) -> Kind:
        """Return a metric that has one series."""
        return kind(name, text, tuple(self._labels), registry=self._registry, **options).labels(**self._labels)

    def each(
        self, kind: type[Kind], name: str, text: str, label: str, values: Iterable[Value], **options: Any
    ) -> dict[Value, Kind]:
        """Return a metric that has a series for each of `values` from the start. If a series only appeared with its
        first event, rate() would miss that event."""
        by_value = self.by(kind, name, text, label, **options)
        return {value: by_value(value) for value in values}

    def each_of(
        self, kind: type[Kind], name: str, text: str, labels: Mapping[str, Iterable[str]]
    ) -> dict[tuple[str, ...], Kind]:
        """Return a metric that has a series for each combination of the values of several labels, from the start."""
        metric = kind(name, text, (*self._labels, *labels), registry=self._registry)
        return {
            values: metric.labels(**self._labels, **dict(zip(labels, values, strict=True)))
            for values in itertools.product(*labels.values())
        }

    def by(self, kind: type[Kind], name: str, text: str, label: str, **options: Any) -> Callable[[str], Kind]:
        """Return a metric that has a series for every value that is requested."""
        metric = kind(name, text, (*self._labels, label), registry=self._registry, **options)
        return lambda value: metric.labels(**self._labels, **{label: value})

    def removable(self, name: str, text: str, label: str) -> RemovableCounter:
        """Return a counter like that of `by`, whose series can be removed."""
        metric = Counter(name, text, (*self._labels, label), registry=self._registry)
        return RemovableCounter(metric, self._labels, label)
