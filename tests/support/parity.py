"""How close a model's log-probabilities come to those of transformers in fp32 on the same bf16 weights.

Teacher-forced: at every position of given texts, the log-probability of the true next token and the most likely token.
transformers in bf16 on the same positions is the yardstick.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan
from numaserve.workers.interface.settings import BF16_WEIGHTS, WeightFormats

from tests.support import checkpoints, fake_quantization
from tests.support.demo import ALICE, demo_model
from tests.support.families.table import FAMILIES
from tests.support.kept_scores import Arrays, is_played, kept, key_of, key_of_files
from tests.support.rank_group import RankGroup

CONTEXT = 512
POSITIONS = 500
RANDOM_TEXTS = 6
DEMO = "SmolLM2"
NAMES = (DEMO, *FAMILIES)
_PAGES = -(-CONTEXT // PAGE_SIZE)
_READING = Path(__file__).read_text() + Path(checkpoints.__file__).read_text()
_PLAYING = Path(fake_quantization.__file__).read_text()  # scores are computed again after a change

Texts = Sequence[list[int]]


@dataclass(frozen=True)
class Scores:
    """By position: the log-probability of the true next token, and the most likely token."""

    logprobs: npt.NDArray[np.float64]
    top: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Distance:
    """How far scores are from the reference: mean |Δlogprob|, and at how many positions the top token differs."""

    mean_delta: float
    disagreements: int
    positions: int

    @classmethod
    def between(cls, scores: Scores, reference: Scores) -> Distance:
        """The distance of `scores` from `reference`."""
        delta = np.abs(scores.logprobs - reference.logprobs)
        return cls(float(delta.mean()), int((scores.top != reference.top).sum()), len(delta))


@dataclass(frozen=True)
class Subject:
    """A checkpoint with texts, the reference's scores on them, and the yardstick's distance from these."""

    name: str
    path: Path
    texts: Texts
    reference: Scores
    yardstick: Distance

    def distance(self, tp: int, formats: WeightFormats = BF16_WEIGHTS, **settings: Any) -> Distance:
        """The distance of the model served by `tp` ranks, with other `settings` than the defaults."""
        scores = served_scores(self.path, tp, self.texts, formats, **settings)
        return Distance.between(scores, self.reference)


_MADE: dict[str, Subject] = {}  # by name: several files of tests want the same ones


def make_subject(name: str, folder: Path) -> Subject:
    """Return one of `NAMES`; `folder` is empty, and kept until the end of the tests. The demo needs its package, see
    `demo`."""
    if name not in _MADE:
        _MADE[name] = gguf_subject(DEMO, demo_model()) if name == DEMO else _random_subject(name, folder)
    return _MADE[name]


def gguf_subject(name: str, path: Path) -> Subject:
    """Return the model of a GGUF file on a passage of real text, with the weights that the file stands for in bf16."""
    tokens = load_tokenizer(path).encode(ALICE)[: POSITIONS + 1]

    def read() -> tuple[hf.PreTrainedModel, hf.PreTrainedModel]:
        # Loading logs an advice about the speed of dequantizing, which happens once here.
        logging.getLogger("transformers").setLevel(logging.ERROR)
        load = hf.AutoModelForCausalLM.from_pretrained
        with _quick_gguf():
            narrow = load(path.parent, gguf_file=path.name, dtype=torch.bfloat16).eval()
        wide = checkpoints.blank_model(narrow.config, dtype=torch.float32)
        wide.load_state_dict({name: value.float() for name, value in narrow.state_dict().items()})
        return wide, narrow

    return _subject(name, path, [tokens], [path], read)


def _random_subject(case: str, folder: Path) -> Subject:
    """A random checkpoint on random tokens."""
    model = checkpoints.random_model(case)
    checkpoints.save(model, folder)
    texts = np.random.default_rng(0).integers(3, checkpoints.VOCAB, (RANDOM_TEXTS, POSITIONS + 1)).tolist()

    def read() -> list[hf.PreTrainedModel]:
        load = checkpoints.model_class(model.config).from_pretrained
        return [
            load(folder, dtype=dtype, attn_implementation="eager").eval() for dtype in (torch.float32, torch.bfloat16)
        ]

    return _subject(case, folder, texts, sorted(folder.iterdir()), read)


@contextlib.contextmanager
def _quick_gguf() -> Iterator[None]:
    """Let transformers load a GGUF file in a quarter of the time.

    It would read the file, a long vocabulary above all, for the configuration and again for the weights; make the map
    of names for each module; and take half a million slices of a memory map, which are slower than those of an array.
    """
    with (
        mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        mock.patch.object(np, "memmap", lambda path, **_: np.fromfile(path, np.uint8)),
    ):
        yield


def _subject(
    name: str, path: Path, texts: Texts, files: Iterable[Path], read: Callable[[], Iterable[hf.PreTrainedModel]]
) -> Subject:
    """Return the subject whose models in fp32 and in bf16 `read` makes of `files`. They are read only where their
    scores are not kept: transformers takes longer to read a model than to write it."""

    def compute() -> Arrays:
        (wide, wide_top), (narrow, narrow_top) = (vars(_computed(each, texts)).values() for each in read())
        return {"wide": wide, "wide_top": wide_top, "narrow": narrow, "narrow_top": narrow_top}

    found = kept(key_of_files(files, texts, _READING), compute)
    reference, yardstick = (Scores(found[each], found[f"{each}_top"]) for each in ("wide", "narrow"))
    return Subject(name, path, texts, reference, Distance.between(yardstick, reference))


def transformers_scores(model: hf.PreTrainedModel, texts: Texts, played: object = None) -> Scores:
    """Return the scores that transformers computes in the model's own precision, and keep them on disk.

    `played` names what `fake_quantization` has the model compute.
    """
    if played is None and is_played(model):
        return _computed(model, texts)
    key = key_of(model, texts, played and (played, _PLAYING))
    return Scores(**kept(key, lambda: vars(_computed(model, texts))))


def _computed(model: hf.PreTrainedModel, texts: Texts) -> Scores:
    torch.set_num_threads(1)  # OpenMP's threads wait for each other for seconds on cores that other tests use too
    logprobs, top = [], []
    # Texts of a length at once: what a layer costs besides its products takes longer than these.
    for _, alike in groupby(texts, len):
        tokens = torch.tensor([*alike])
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits
        for rows, following in zip(logits, tokens[:, 1:], strict=True):
            found = torch.log_softmax(rows.double(), -1)
            logprobs.append(found.gather(1, following[:, None])[:, 0].numpy())
            top.append(found.argmax(-1).numpy())
    return Scores(np.concatenate(logprobs), np.concatenate(top))


def served_scores(
    path: Path, tp: int, texts: Texts, formats: WeightFormats = BF16_WEIGHTS, adapter: int = 0, **settings: Any
) -> Scores:
    """Scores of `tp` workers with the adapter of that number, and with other `settings` than the defaults."""
    limits = {"num_pages": _PAGES, "context_length": CONTEXT, "max_step_tokens": CONTEXT}
    with RankGroup(path, tp, **limits, formats=formats, **settings) as group:
        init = SlotInit(SamplingParams(temperature=0.0, logprobs=1), adapter=adapter)
        rows = []
        for step, text in enumerate(texts):
            plan = SeqPlan(0, 0, text[:-1], pages=list(range(_PAGES)), init=init, prompt_logprobs=text[1:])
            rows += group.run(StepPlan(step, [plan])).seqs[0].prompt_logprobs
    return Scores(np.array([row.logprob for row in rows]), np.array([row.top_ids[0] for row in rows]))
