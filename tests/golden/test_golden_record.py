"""The tree answers what an earlier tree answered, byte by byte."""

from pathlib import Path

import pytest

from tests.golden.all_works import WORKS, checkpoints_of
from tests.golden.compare import differences
from tests.golden.recording import Recording, check_root, write
from tests.support.trees import has_commit, installed_root, root_of_commit

# Moved on with each change of an answer, and with each new kind of checkpoint in the record: older trees refuse it.
REFERENCE = "7e2faa67eb23168b38b0f260cc67d82c4cd9334a"
_SHOWN = 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tree_answers_as_the_reference_does(tmp_path: Path) -> None:
    from tests.golden.checkpoint_folder import write_checkpoints  # imports torch

    installed = installed_root()
    if installed is None:
        pytest.skip("numaserve is not installed with its native modules: make install-test")
    if not has_commit(REFERENCE):
        pytest.skip(f"the checkout has no history: git fetch --unshallow, or clone the commit {REFERENCE}")
    models, reference = tmp_path / "models", tmp_path / "checkout"
    reference.mkdir()
    write_checkpoints(checkpoints_of(WORKS), models)
    records = {"reference": root_of_commit(REFERENCE, installed, reference), "tree": installed}
    for name, root in records.items():
        check_root(root)
        write(Recording(root, models).run(WORKS), tmp_path / f"{name}.jsonl")
    found = [*differences(tmp_path / "reference.jsonl", tmp_path / "tree.jsonl")]
    assert not found, "\n".join([f"{len(found)} cases differ", *found[:_SHOWN]])
