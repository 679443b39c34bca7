"""The workflows run what a developer can run; their syntax is checked by actionlint, in `make lint`."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from tests.documentation.parts import ROOT
from tests.documentation.targets import by_audience

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps() -> Iterator[dict[str, Any]]:
    for workflow in WORKFLOWS.values():
        for job in workflow["jobs"].values():
            yield from job["steps"]


def test_each_target_that_a_workflow_makes_is_one_of_the_makefile() -> None:
    made = [re.findall(r"^make (?:--silent )?([a-z-]+)", step.get("run", ""), re.M) for step in steps()]
    targets = {target for each in made for target in each}
    assert targets == {"release-notes", "test-wheel", "container-archive", "checksums"}
    assert targets <= {name for names in by_audience().values() for name in names}


def test_a_release_has_a_wheel_for_each_python_that_the_package_and_the_readme_name() -> None:
    versions = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert WORKFLOWS["release"]["jobs"]["wheel"]["strategy"]["matrix"]["python"] == versions
    assert f"wheels for Python {versions[0]} to {versions[-1]}:" in (ROOT / "README.md").read_text()


def test_workflows_trust_github_alone_and_have_no_more_rights_than_they_use() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and [each for each in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", each)] == []
    assert all("secrets." not in str(workflow) for workflow in WORKFLOWS.values())
    assert [workflow["permissions"] for workflow in WORKFLOWS.values()] == [{"contents": "read"}] * len(WORKFLOWS)
    writers = [name for name, job in WORKFLOWS["release"]["jobs"].items() if "write" in str(job.get("permissions"))]
    assert writers == ["publish"]
    assert all("timeout-minutes" in job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values())
