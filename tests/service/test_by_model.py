"""The options that an encoder decides where the operator leaves them out."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from numaserve.server.config.serve import ServeConfig, load_config
from numaserve.server.service.model import by_model
from numaserve.server.service.model.by_model import with_model_defaults
from numaserve.server.service.model.deployment import deployment_options
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.load import ModelFiles
from numaserve.workers.models.spec import ModelConfig

from tests.support.configured import bidirectional, configured, splade
from tests.support.sentence_folder import write_modules

CLS = {"pooling_mode": "cls"}


class Decide:
    """`with_model_defaults` for the model of a folder that is said to have this configuration."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = ModelFiles(folder, None, SafetensorsFiles(folder))
        self.asked: list[ModelSettings] = []
        self._monkeypatch = monkeypatch

    def __call__(self, model: ModelConfig, **options: Any) -> tuple[ServeConfig, ServeConfig]:
        """Return the configuration as it was given, and with the model's defaults."""

        def read(_files: ModelFiles, settings: ModelSettings) -> ModelConfig:
            self.asked.append(settings)
            return model

        self._monkeypatch.setattr(by_model, "read_config", read)
        config = load_config({"model": "m", **options})
        return config, with_model_defaults(config, self.files)


@pytest.fixture
def decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decide:
    return Decide(tmp_path, monkeypatch)


@pytest.mark.parametrize("options", [{}, {"task": "embed"}, {"task": "score", "context_length": 64}])
def test_a_decoder_is_served_as_the_operator_says(decide: Decide, options: dict[str, Any]) -> None:
    write_modules(decide.files.path, pooling=CLS, sentence_bert_config={"max_seq_length": 128})
    given, decided = decide(configured(), **options)
    assert decided is given
    assert decided.served_task == options.get("task", "generate")


def test_an_encoder_is_served_for_embeddings_without_being_asked(
    decide: Decide, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    _, decided = decide(bidirectional())
    assert (decided.task, decided.served_task, decided.context_length) == ("embed", "embed", None)
    assert caplog.messages == ["the model is an encoder: the task is embed"]
    assert deployment_options(decided, decide.files.path, None).settings.pooled


def test_an_encoder_that_is_asked_for_embeddings_is_read_without_a_head(
    decide: Decide, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given, decided = decide(bidirectional(), task="embed")
    assert decided == given.model_copy(update={"settings": structs.replace(given.settings, pooled=True)})
    assert decide.asked == [structs.replace(given.settings, pooled=True)]
    assert caplog.messages == []


def test_an_encoder_is_refused_for_another_task(decide: Decide) -> None:
    with pytest.raises(OperatorError, match=r"--task score does not fit .*Set --task embed or leave --task out"):
        decide(bidirectional(), task="score")


@pytest.mark.parametrize(
    ("labels", "task", "route"),
    [((), "embed", "/v1/embeddings"), (("yes",), "score", "/v1/rerank"), (("a", "b"), "classify", "/predict")],
)
def test_an_encoder_that_should_generate_is_refused_with_its_route(
    decide: Decide, labels: tuple[str, ...], task: str, route: str
) -> None:
    message = rf"an encoder for the task {task} and generates no text: serve it with `numaserve serve` .* to {route}$"
    with pytest.raises(OperatorError, match=message):
        decide(replace(bidirectional(), labels=labels), task="generate")


@pytest.mark.parametrize(("labels", "task"), [(("yes",), "score"), (("a", "b"), "classify")])
def test_the_head_of_an_encoder_decides_its_task(
    decide: Decide, caplog: pytest.LogCaptureFixture, labels: tuple[str, ...], task: str
) -> None:
    caplog.set_level(logging.INFO)
    model = replace(bidirectional(), labels=labels)
    _, decided = decide(model)
    assert (decided.served_task, caplog.messages) == (task, [f"the model is an encoder: the task is {task}"])
    assert deployment_options(decided, decide.files.path, None).settings.pooled
    with pytest.raises(OperatorError, match=rf"--task embed does not fit .*Set --task {task} or leave --task out"):
        decide(model, task="embed")


def test_a_splade_model_is_served_for_sparse_vectors(decide: Decide, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, decided = decide(splade())
    assert (decided.served_task, caplog.messages) == ("sparse", ["the model is an encoder: the task is sparse"])
    assert [each.pooled for each in decide.asked] == [False, True]
    assert deployment_options(decided, decide.files.path, None).settings.pooled
    with pytest.raises(OperatorError, match=r"--task embed does not fit .*Set --task sparse or leave --task out"):
        decide(splade(), task="embed")
    with pytest.raises(OperatorError, match=r"--task sparse does not fit .*Set --task embed or leave --task out"):
        decide(bidirectional(), task="sparse")
    with pytest.raises(OperatorError, match="--task sparse needs a SPLADE model"):
        decide(configured(), task="sparse")
    with pytest.raises(OperatorError, match=r"for the task sparse and generates no text: .* to /embed_sparse$"):
        decide(splade(), task="generate")


@pytest.mark.parametrize(
    ("layers", "quantization", "said"),
    [(30, "int8", "this encoder has 135 million parameters"), (60, "int8", ""), (30, "fp8", ""), (30, None, "")],
)
def test_int8_of_a_small_encoder_is_logged(
    decide: Decide, caplog: pytest.LogCaptureFixture, layers: int, quantization: str | None, said: str
) -> None:
    options = {} if quantization is None else {"quantization": quantization}
    decide(bidirectional(num_hidden_layers=layers), task="embed", **options)
    assert said in caplog.text
    assert bool(said) == ("int8 changes the results of small encoders" in caplog.text)


def test_an_encoder_has_no_draft_model(decide: Decide) -> None:
    with pytest.raises(OperatorError, match="--draft-model needs a model that generates text"):
        decide(bidirectional(), draft_model="d")


@pytest.mark.parametrize(
    ("limit", "asked", "context"), [(128, None, 128), (128, 400, 400), (512, None, None), (900, None, None)]
)
def test_texts_of_an_encoder_are_as_long_as_it_was_trained_for(
    decide: Decide, caplog: pytest.LogCaptureFixture, limit: int, asked: int | None, context: int | None
) -> None:
    caplog.set_level(logging.INFO)
    write_modules(decide.files.path, pooling=CLS, sentence_bert_config={"max_seq_length": limit})
    _, decided = decide(bidirectional(), task="embed", context_length=asked)
    assert decided.context_length == context
    said = "texts have at most 128 tokens, as sentence_bert_config.json says; --context-length raises the limit to"
    assert caplog.messages == ([f"{said} at most 512"] if context == 128 else [])
