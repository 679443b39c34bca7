import pytest
from numaserve.server.gateway.models.metrics import FleetMetrics, merged
from numaserve.server.metrics.metrics import Metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


def samples(text: bytes) -> dict[str, list[Sample]]:
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family.samples for family in families}


def test_each_family_is_there_once_and_each_sample_tells_its_model() -> None:
    texts = {}
    for name in ('a "quoted" \\ one', "b"):
        metrics = Metrics(name)
        metrics.inter_token(0.01)
        texts[name] = metrics.render()[0]
    found = samples(merged(generate_latest(FleetMetrics(["b"]).registry), texts))
    tokens = {each.labels["model_name"]: each.value for each in found["numaserve_generation_tokens"]}
    assert tokens == {'a "quoted" \\ one': 1.0, "b": 1.0}
    assert {each.labels.get("model_name") for each in found["process_cpu_seconds"]} == {None, *texts}


def test_nothing_of_a_single_text_is_changed() -> None:
    metrics = Metrics("a")
    text = metrics.render()[0]
    assert merged(text, {}) == text
    labelled = b"\n".join(line for line in merged(b"", {"a": text}).splitlines() if not line.startswith(b"process_"))
    assert labelled == b"\n".join(line for line in text.splitlines() if not line.startswith(b"process_"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"x 1", b'x{model_name="m"} 1'),
        (b'x{a="b"} 1', b'x{model_name="m",a="b"} 1'),
        (b'x{a="b",model_name="n"} 1', b'x{a="b",model_name="n"} 1'),
    ],
)
def test_a_sample_gets_a_label_where_it_has_none(line: bytes, expected: bytes) -> None:
    assert (
        merged(b"", {"m": b"# HELP x X\n# TYPE x gauge\n" + line}) == b"# HELP x X\n# TYPE x gauge\n" + expected + b"\n"
    )
