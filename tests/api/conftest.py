from collections.abc import Iterator

import pytest
from image_cases import FakeDecoder, seeing_client, seeing_context
from numaserve.server.app.application import ApiContext, create_app
from shared_apps import app_over
from tool_cases import CALL, Template, thinking_client
from whole_answers import TestClient

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.forked import members_and_workers_forked, prepare


@pytest.fixture(autouse=True, scope="session")
def _cheap_processes() -> Iterator[None]:
    """Has processes that decode long bodies forked: an application starts its own, which imports all schemas."""
    prepare(["numaserve.server.app.decode_main"])
    with members_and_workers_forked():
        yield


@pytest.fixture(scope="module")
def shared_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def shared_client(shared_engine: FakeEngine) -> Iterator[TestClient]:
    with TestClient(create_app(make_context(shared_engine)), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def renewed_engine(shared_engine: FakeEngine) -> FakeEngine:
    """The module's engine, as if it were new."""
    vars(shared_engine).update(vars(FakeEngine()))
    return shared_engine


@pytest.fixture
def renewed_client(shared_client: TestClient, renewed_engine: FakeEngine) -> TestClient:
    """A client of `renewed_engine`. To make an application for each of hundreds of tests would take most of their
    time."""
    return shared_client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def context(engine: FakeEngine) -> ApiContext:
    return make_context(engine)


@pytest.fixture
def client(context: ApiContext) -> Iterator[TestClient]:
    with TestClient(app_over(context), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def template() -> Template:
    return Template()


@pytest.fixture
def thinker(engine: FakeEngine, template: Template) -> Iterator[TestClient]:
    """A client of a model that can call and think; it calls unless `engine` is given another reply."""
    engine.reply = CALL
    with thinking_client(engine, template) as client:
        yield client


@pytest.fixture
def decoder() -> FakeDecoder:
    return FakeDecoder()


@pytest.fixture
def seeing(engine: FakeEngine, decoder: FakeDecoder) -> ApiContext:
    return seeing_context(engine, decoder)


@pytest.fixture
def viewer(seeing: ApiContext) -> Iterator[TestClient]:
    """A client of a model that takes images."""
    with seeing_client(seeing) as viewer:
        yield viewer
