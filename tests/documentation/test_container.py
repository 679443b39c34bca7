"""What the image is made of, as far as can be said without building it; `make test-container` runs it."""

import re

from tests.documentation.parts import ROOT

CONTAINERFILE = (ROOT / "deploy" / "container" / "Containerfile").read_text()
STEPS = [
    line.split(maxsplit=1) for line in re.sub(r"\\\n", " ", CONTAINERFILE).splitlines() if re.match(r"[A-Z]", line)
]


def test_nothing_runs_while_the_image_is_built_and_it_runs_as_a_user_who_owns_nothing_else() -> None:
    names = [name for name, _ in STEPS]
    assert "RUN" not in names and "ADD" not in names
    (user,) = [rest for name, rest in STEPS if name == "USER"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user), "Kubernetes' runAsNonRoot takes numbers only"
    owned = [rest for name, rest in STEPS if name == "COPY" and "--chown" in rest]
    assert owned == [f"--chown={user} cache /var/cache/numaserve"]


def test_the_page_names_the_base_that_the_makefile_takes() -> None:
    default = re.search(r"^ARG BASE=(\S+)$", CONTAINERFILE, re.M)
    assert default
    for place in ("Makefile", "docs/containers.md"):
        assert default[1] in (ROOT / place).read_text()
