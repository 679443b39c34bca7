"""POST /predict over an encoder whose logits are the first byte, the number of tokens, and 1 for a pair."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates
from numaserve.server.scheduler.request import Request
from shared_apps import app_over
from starlette.testclient import TestClient

from tests.support.api_fakes import BOS, EMBEDDING_SIZE, EOS, MODEL, FakeEngine, FakeStream, make_context

LABELS = ("byte", "tokens", "pair")
LENGTH = 40


class LabellingStream(FakeStream):
    _engine: LabellingEngine

    async def __anext__(self) -> GenerationChunk:
        request = self._waiting[0].request if self._waiting else None
        chunk = await super().__anext__()
        assert request is not None and request.pooling is not None
        logits = [request.prompt[1] - ord("m"), len(request.prompt) / 10, request.pooling.second_text > 0]
        chunk.embedding = array("f", logits[: self._engine.labels]).tobytes()
        return chunk


class LabellingEngine(FakeEngine):
    labels = len(LABELS)

    def admit(self, requests: Sequence[Request]) -> FakeStream:
        self.admitted += requests
        return LabellingStream(self, requests)


@pytest.fixture
def engine() -> LabellingEngine:
    return LabellingEngine()


@pytest.fixture
def labelling(engine: FakeEngine) -> Iterator[TestClient]:
    context = make_context(engine, purpose=Classifies(LABELS, "none"), context_length=LENGTH)
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


def predicted(client: TestClient, inputs: Any, **more: Any) -> Any:
    answer = client.post("/predict", json={"inputs": inputs, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_labels_come_with_probabilities_the_best_first(labelling: TestClient) -> None:
    weights = {"byte": math.exp(2), "tokens": math.exp(0.2), "pair": 1.0}
    expected = [{"score": pytest.approx(weights[name] / sum(weights.values())), "label": name} for name in weights]
    assert predicted(labelling, "o", model=MODEL) == expected


@pytest.mark.parametrize(
    ("inputs", "prompts"),
    [
        ("a", [[BOS, *b"a"]]),
        (["a"], [[BOS, *b"a"]]),
        (["a", "b"], [[BOS, *b"a", EOS, *b"b", EOS]]),
        ([["a"], ["b", "c"]], [[BOS, *b"a"], [BOS, *b"b", EOS, *b"c", EOS]]),
    ],
)
def test_inputs_are_texts_or_pairs_alone_or_in_a_list(
    labelling: TestClient, engine: FakeEngine, inputs: Any, prompts: list[list[int]]
) -> None:
    answer = predicted(labelling, inputs, raw_scores=True)
    assert [request.prompt for request in engine.admitted] == prompts
    items = answer if isinstance(inputs[0], list) else [answer]
    assert [{each["label"]: each["score"] for each in item}["pair"] for item in items] == [
        float(EOS in prompt) for prompt in prompts
    ]


def test_one_label_has_the_probability_that_it_holds(engine: LabellingEngine) -> None:
    engine.labels = 1
    context = make_context(engine, purpose=Classifies(LABELS[:1], "none"))
    with TestClient(app_over(context)) as client:
        assert predicted(client, "m")[0] == {"score": 0.5, "label": "byte"}


def test_long_inputs_are_cut_where_that_is_asked_for(labelling: TestClient, engine: FakeEngine) -> None:
    predicted(labelling, [["a" * 100], ["b" * 30, "c" * 100]], truncate=True)
    assert [len(request.prompt) for request in engine.admitted] == [LENGTH, LENGTH]
    answer = labelling.post("/predict", json={"inputs": "a" * 100})
    assert (answer.status_code, answer.json()["error_type"]) == (400, "Validation")
    assert "maximum context length is 40 tokens" in answer.json()["error"]


@pytest.mark.parametrize("inputs", [[], [[]], ["a", "b", "c"], [["a", "b", "c"]], {"a": 1}, [["a"], "b"]])
def test_other_inputs_are_refused_in_the_form_of_the_api(
    labelling: TestClient, engine: FakeEngine, inputs: object
) -> None:
    answer = labelling.post("/predict", json={"inputs": inputs})
    assert (answer.status_code, answer.json()["error_type"], engine.admitted) == (400, "Validation", [])


@pytest.mark.parametrize("served", [{"purpose": Embeds(EMBEDDING_SIZE)}, {"purpose": Generates(Judge(1, 2))}, {}])
def test_a_model_without_a_head_is_refused(engine: FakeEngine, served: dict[str, Any]) -> None:
    with TestClient(app_over(make_context(engine, **served))) as client:
        answer = client.post("/predict", json={"inputs": "a"})
        assert answer.status_code == 400
        assert "no classification head" in answer.json()["error"]
