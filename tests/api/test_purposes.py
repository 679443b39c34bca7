"""The routes that a model serves, and the facts that it reports, by its purpose."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from model_bodies import CLASSIFYING, GENERATING, JUDGING, POOLING, SPARSE
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates, Purpose
from numaserve.server.generation.sparse import SparseOutput
from shared_apps import app_over
from whole_answers import TestClient

from tests.support.api_fakes import EMBEDDING_SIZE, MODEL, FakeEngine, make_context
from tests.support.error_forms import error_message

WORDS = SparseOutput()


class Served(NamedTuple):
    """A purpose, and the routes and reports of a model with it."""

    purpose: Purpose
    bodies: Mapping[str, dict[str, Any]]
    task: str
    capabilities: list[str]


MODELS = {
    "decoder": Served(Generates(), GENERATING, "generate", ["completion"]),
    "judge": Served(Generates(Judge(ord("n"), ord("y"))), GENERATING | JUDGING, "generate", ["completion"]),
    "dense": Served(Embeds(EMBEDDING_SIZE), POOLING, "embed", ["embedding"]),
    "splade": Served(Embeds(sparse=WORDS), SPARSE, "sparse", []),
    "all vectors": Served(Embeds(EMBEDDING_SIZE, WORDS, 8), POOLING | SPARSE, "embed", ["embedding"]),
    "cross-encoder": Served(Classifies(("fits",), "sigmoid"), CLASSIFYING | JUDGING, "score", []),
    "classifier": Served(Classifies(("a", "b", "c", "d"), "none"), CLASSIFYING, "classify", []),
}
ALL = GENERATING | POOLING | SPARSE | CLASSIFYING | JUDGING


@pytest.mark.parametrize("served", MODELS.values(), ids=MODELS)
def test_a_model_serves_the_routes_of_its_purpose_and_refuses_all_others(served: Served) -> None:
    engine = FakeEngine(dimensions=1 if served.task == "score" else EMBEDDING_SIZE)
    with TestClient(app_over(make_context(engine, purpose=served.purpose, context_length=600))) as client:
        for path, body in ALL.items():
            engine.admitted.clear()
            answer = client.post(path, json=body)
            if path in served.bodies:
                assert (path, answer.status_code, bool(engine.admitted)) == (path, 200, True)
            else:
                assert (path, answer.status_code, engine.admitted) == (path, 400, [])
                assert error_message(answer).startswith("This model ")
        assert client.get("/health_generate").status_code == 200


@pytest.mark.parametrize("served", MODELS.values(), ids=MODELS)
def test_a_model_reports_its_task_and_capabilities(served: Served) -> None:
    with TestClient(app_over(make_context(FakeEngine(), purpose=served.purpose))) as client:
        info = client.get("/model_info").json()
        shown = client.post("/api/show", json={"model": MODEL}).json()
    assert (info["task"], info["is_generation"]) == (served.task, served.task == "generate")
    assert [each for each in shown["capabilities"] if each in {"completion", "embedding"}] == served.capabilities
