"""Gemma 4's assistants: what they draft, and which models they draft for."""

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import (
    PAGE_SIZE,
    TO_BE_DRAFTED,
    DraftModel,
    DraftWork,
    Launch,
    SamplingParams,
    SeqPlan,
    SlotInit,
    StepPlan,
    WindowWork,
)
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend
from numaserve.workers.interface.windows import Window
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.options import DraftOptions
from numaserve.workers.process.drafter import RankParts
from numaserve.workers.process.drafters import make_drafter
from numaserve.workers.process.node import NodeContext
from numaserve.workers.process.rank_program import RankProgram, RankWeights
from numaserve.workers.program.slots import END_SAMPLE, slot_settings
from numaserve.workers.weights.checkpoint import check_checkpoint

from tests.support import checkpoints, gemma4
from tests.support.machines import OPTIONS, machine

WINDOW, DRAFTS = 16, 4
PAGES, WINDOW_PAGES, CHUNK = 14, 15, 96
SIZES = checkpoints.sizes(96, 6, 3, 160, head_dim=24, global_head_dim=40, sliding_window=WINDOW)
TARGETS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "shared": lambda: gemma4.text_config(SIZES | {"num_hidden_layers": 7}, **gemma4.SHARED),
    "keys-only": lambda: gemma4.text_config(SIZES | {"num_hidden_layers": 3}, **gemma4.KEYS_ONLY),
}
LENGTHS = (5, 16, 17, 33, 90, 271, 272, 273, *range(30, 400, 17))
GREEDY = SlotInit(SamplingParams(temperature=0.0))
Models = tuple[hf.PreTrainedModel, hf.PreTrainedModel]


@pytest.fixture(scope="module", params=TARGETS)
def models(request: pytest.FixtureRequest) -> Models:
    """A model and its assistant."""
    target = TARGETS[request.param]()
    return checkpoints.build(target), gemma4.random_assistant(target)


@pytest.fixture(scope="module")
def folders(models: Models, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    (target, _), path = models, tmp_path_factory.mktemp("models")
    checkpoints.save(target, path / "target")
    return path / "target", gemma4.save_assistant(target.config, path / "assistant")


@pytest.fixture(scope="module")
def drafts(models: Models) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Prompts with the tokens after them, and how many of these transformers finds in bf16, the yardstick: heads whose
    scores are not scaled are sensitive to rounding."""
    narrow = tuple(copy.deepcopy(each).to(torch.bfloat16) for each in models)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, checkpoints.VOCAB, length).tolist() for length in LENGTHS]
    found = [(tokens, expected(models, tokens)) for tokens in prompts]
    return found, sum(agreement(expected(narrow, tokens), wanted) for tokens, wanted in found)


def expected(models: Models, tokens: list[int]) -> list[int]:
    """The token that transformers samples after `tokens`, and the draft tokens after it."""
    target, assistant = models
    with torch.no_grad():
        out = target.model(torch.tensor([tokens]), return_shared_kv_states=True, use_cache=False)
        hidden = out.last_hidden_state[:, -1:]
        token = target.lm_head(hidden).argmax(-1)
        caches = dict(out.shared_kv_states)
        # Tokens within the window of the new one, whose keys are not in the cache.
        caches["sliding_attention"] = tuple(each[:, :, -(WINDOW - 1) :] for each in caches["sliding_attention"])
        found = [int(token)]
        for _ in range(DRAFTS):
            made = assistant(
                inputs_embeds=torch.cat([target.model.embed_tokens(token), hidden], -1),
                position_ids=torch.tensor([[len(tokens)]]),
                shared_kv_states=caches,
            )
            token, hidden = made.logits.argmax(-1), made.last_hidden_state
            found.append(int(token))
    return found


class Drafting:
    """A rank with a model and its assistant, as a worker has them, with a window table or without."""

    def __init__(self, folders: tuple[Path, Path], backend: Backend, team: Team, *, tables: bool) -> None:
        target, assistant = folders
        limits = Capacity.of_program(CHUNK, 32, 2, PAGES, PAGES)
        launch = Launch(
            rank=0,
            world_size=1,
            model=str(target),
            cpus=[[-1]],
            nodes=[0],
            weights=[1],
            capacity=msgspec.structs.replace(limits, window_pages=(WINDOW_PAGES,) if tables else ()),
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=60.0,
            backend=backend,
            draft=DraftModel(str(assistant), DEFAULT_SETTINGS),
            drafter="assistant",
        )
        node = NodeContext(0, team, None)
        held = RankWeights(launch)
        draft = RankWeights(msgspec.structs.replace(launch, model=str(assistant), capacity=limits), held.config)
        for each in (held, draft):
            each.load(node, lambda done: None)
        self.tables = tables
        self.served = RankProgram(held, replace(held.config.decoder, shows_rows=True), node, launch.capacity)
        drafter = make_drafter(RankParts(launch, [held, draft], self.served, node))
        assert drafter is not None
        self.drafter = drafter

    def drafted(self, tokens: list[int]) -> list[int]:
        """The token that is sampled after a prompt, and the draft tokens after it."""
        self.window: dict[int, int] = {}  # ids of window pages, by their numbers in the table
        sampled = -1
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            begins = {"pages": list(range(PAGES)), "init": GREEDY} if start == 0 else {}
            is_last = start + CHUNK >= len(tokens)
            plan = self._plan(SeqPlan(0, start, chunk, sample=is_last, **begins))
            if start == 0:
                self.served.program.init_slot(0, slot_settings(GREEDY))
                self.served.program.append_pages(0, begins["pages"])
            for work in plan.windows or ():
                self.served.program.advance_window(0, work.window, work.first, work.pages)
            self.drafter.prepare(plan)
            row = np.array([[0, start, len(chunk), 0, END_SAMPLE if is_last else 0, 0]], np.int32)
            rows, *_ = self.served.program.step(row, np.array(chunk, np.int32), np.empty(0, np.int32))
            self.drafter.follow(plan)
            sampled = rows[0][1][0] if is_last else -1
        more = self._plan(SeqPlan(0, len(tokens), [sampled, *[TO_BE_DRAFTED] * DRAFTS], sample=True))
        plan = msgspec.structs.replace(more, drafts=[DRAFTS], draft_work=[DraftWork(0)])
        self.drafter.prepare(plan)
        completed, _ = self.drafter.run(plan)
        return completed.seqs[0].tokens

    def _plan(self, seq: SeqPlan) -> StepPlan:
        """A plan of a sequence, which gives back the window pages that it no longer reads for the next ones."""
        if not self.tables:
            return StepPlan(0, [seq])
        first, end = Window(WINDOW).first_page(seq.start), -(-(seq.start + seq.num_tokens) // PAGE_SIZE)
        had = max(self.window, default=-1) + 1
        self.window = {number: page for number, page in self.window.items() if number >= first}
        free = [page for page in range(WINDOW_PAGES) if page not in self.window.values()]
        new = {number: free[number - had] for number in range(had, end)}
        self.window |= new
        return StepPlan(0, [seq], windows=[WindowWork(0, 0, first, list(new.values()))])


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_an_assistant_drafts_what_it_drafts_in_transformers(
    drafts: tuple[list[tuple[list[int], list[int]]], int],
    folders: tuple[Path, Path],
    backend: Backend,
    team: Team,
    tables: bool,
) -> None:
    rank, (answers, yardstick) = Drafting(folders, backend, team, tables=tables), drafts
    found = sum(agreement(rank.drafted(tokens), wanted) for tokens, wanted in answers)
    assert found >= yardstick
    assert found > 2 * len(LENGTHS)


def agreement(found: list[int], wanted: list[int]) -> int:
    """The number of tokens before the first one that differs. The following ones have other reasons to."""
    pairs = zip(found, wanted, strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(wanted))


def test_an_assistant_takes_the_memory_of_its_weights_alone(folders: tuple[Path, Path]) -> None:
    target, assistant = folders
    draft = DraftOptions(str(assistant), load_model_config(assistant), DEFAULT_SETTINGS)
    check_checkpoint(open_model(assistant), draft.config)
    options = replace(OPTIONS, model=str(target), kv_cache_gib=0.01, drafter="assistant", drafts=True)
    alone, drafting = (
        make_deployment(replace(options, draft=each), load_model_config(target), machine(2, 2))
        for each in (None, draft)
    )
    assert drafting.capacity.num_pages == alone.capacity.num_pages
    for one, other in zip(alone.ranks, drafting.ranks, strict=True):
        assert one.kv_bytes == other.kv_bytes
        assert one.weight_bytes < other.weight_bytes


def changed(path: Path, **fields: object) -> None:
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone_hidden_size": 64}, "drafts for a model with 64 columns and 499 tokens, not 96 and 499"),
        ({"backbone_hidden_size": 40}, "backbone_hidden_size=40 must be a multiple of 32"),
    ],
)
def test_an_assistant_of_another_model_is_one_clear_line(
    fields: dict[str, object], message: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    target, assistant = folders
    other = Path(shutil.copytree(assistant, tmp_path / "other"))
    changed(other, **fields)
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(other).drafting_for(load_model_config(target))
    assert "\n" not in str(error.value)


def test_an_assistant_is_not_served_and_has_a_head_for_each_rank(folders: tuple[Path, Path]) -> None:
    target, assistant = folders
    own = load_model_config(assistant)
    with pytest.raises(OperatorError, match="an assistant only drafts for another model: serve that one"):
        make_deployment(replace(OPTIONS, model=str(assistant)), own, machine(2))
    options = replace(OPTIONS, model=str(target), draft=DraftOptions(str(assistant), own, DEFAULT_SETTINGS))
    with pytest.raises(OperatorError, match=r"too few query heads \(6\) for 7 ranks: lower --tp"):
        make_deployment(options, load_model_config(target), machine(*[1] * 7))
