"""The purpose of a model: text, vectors of texts, or labels of texts."""

from dataclasses import dataclass, field

from numaserve.server.config.tasks import Task, task_of_labels
from numaserve.server.generation.classifier import Activation
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.sparse import SparseOutput


@dataclass(frozen=True)
class Generates:
    """The purpose of a model that writes text. A model with a `judge` also scores documents, by a token of its text."""

    judge: Judge | None = None

    @property
    def task(self) -> Task:
        """The task that the API reports: `generate` with a judge too."""
        return "generate"


@dataclass(frozen=True)
class Embeds:
    """The purpose of a model that computes vectors of texts: the kinds of vectors, and the `settings` of its files."""

    dense: int = 0  # dimensions of the vector of a text; 0: the model has none
    sparse: SparseOutput | None = None  # None: the model has no sparse vectors
    tokens: int = 0  # dimensions of the vectors of tokens; 0: the model has none
    settings: EmbeddingSettings = field(default_factory=EmbeddingSettings)

    @property
    def task(self) -> Task:
        """The task that the API reports; `sparse` for a model with sparse vectors alone."""
        return "embed" if self.dense else "sparse"


@dataclass(frozen=True)
class Classifies:
    """The purpose of a model that labels texts, or scores pairs of texts. The `labels` are in the order of their
    logits; the `activation` of scores is the one that the model's files declare."""

    labels: tuple[str, ...]
    activation: Activation

    @property
    def task(self) -> Task:
        """The task that the API reports; `score` for a model with a single label."""
        return task_of_labels(self.labels)

    @property
    def probability(self) -> Activation:
        """The activation that makes probabilities of logits: one label is true or not, of several one is true."""
        return "sigmoid" if len(self.labels) == 1 else "softmax"


Purpose = Generates | Embeds | Classifies
