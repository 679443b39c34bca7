"""The purpose of a model, as the task and the files of the model decide it."""

import json
from pathlib import Path

import pytest
from numaserve.server.config.tasks import Task
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates, Purpose
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.service.model.purpose import find_purpose
from numaserve.workers.layers.dense import Dense
from numaserve.workers.layers.token_head import TokenHead
from numaserve.workers.models.spec import ModelConfig

from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.configured import bidirectional, configured, splade
from tests.support.sentence_folder import write_modules

SETTINGS = EmbeddingSettings({"query": "q: "}, normalize=False)
DENSE = configured().pooled()
FEW = bidirectional().pooled().followed_by([Dense("few", 576, 64)], ["2_Dense"])
WORDS = SparseOutput(left_out=ByteTokenizer().special_token_ids)


@pytest.mark.parametrize(
    ("task", "model", "purpose"),
    [
        ("generate", configured(), Generates()),
        ("score", configured(), Generates(Judge(ord("n"), ord("y")))),
        ("embed", DENSE, Embeds(576, settings=SETTINGS)),
        ("embed", FEW, Embeds(64, settings=SETTINGS)),
        ("embed", DENSE.with_token_head(TokenHead(576, 32, True)), Embeds(576, WORDS, 32, SETTINGS)),
        ("embed", DENSE.with_token_head(TokenHead(576, 32, False)), Embeds(576, None, 32, SETTINGS)),
        ("score", configured().classifying("cls", [Dense("head", 576, 1)], ("fits",)), Classifies(("fits",), "none")),
        (
            "classify",
            configured().classifying("cls", [Dense("head", 576, 2)], ("a", "b")),
            Classifies(("a", "b"), "none"),
        ),
    ],
)
def test_head_labels_and_task_decide(tmp_path: Path, task: Task, model: ModelConfig, purpose: Purpose) -> None:
    prompts = {"prompts": {"query": "q: "}}
    folder = write_modules(tmp_path, "Transformer", "Pooling", pooling={}, config_sentence_transformers=prompts)
    declared = {"classifier_from_token": ["n", "y"], "sentence_transformers": {"activation_fn": "torch.nn.Identity"}}
    (folder / "config.json").write_text(json.dumps(declared))
    found = find_purpose(task, folder, model, ByteTokenizer())
    assert found == purpose
    assert found.task == ("generate" if isinstance(purpose, Generates) else task)


def test_a_model_of_masked_words_has_sparse_vectors_alone(tmp_path: Path) -> None:
    folder = write_modules(tmp_path, "MLMTransformer", "SpladePooling")
    found = find_purpose("sparse", folder, splade(), ByteTokenizer())
    assert found == Embeds(sparse=SparseOutput(1), settings=EmbeddingSettings(normalize=False))
    assert found.task == "sparse"
