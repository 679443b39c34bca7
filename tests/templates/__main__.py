"""``python -m tests.templates``: chat templates of real models, and the formats that are chosen for them.

They are in llama.cpp, which llama-cpp-python's source distribution carries; pip downloads that into `build/templates`,
in an environment of its own. Each template writes a conversation in which a tool was called; the format chosen for the
template must read the call that it wrote. A template writes the thoughts of earlier answers again or leaves them out,
as expected. Prints a table; the exit status is 1 where something is wrong.
"""

import sys
from pathlib import Path

from tests.support.llama_cpp import PACKAGE, VERSION, llama_cpp_files
from tests.templates.expected import EXPECTED, KEPT_THOUGHTS, WRITE_NO_CALLS
from tests.templates.kept_thoughts import NEVER, kept_thoughts
from tests.templates.written_calls import WRITES_NO_CALL, Outcome, try_template

FOLDER = Path(__file__).resolve().parents[2] / "build" / "templates"
TEMPLATES = "models/templates/"


def main() -> int:
    """Try all templates."""
    folder = llama_cpp_files(FOLDER, TEMPLATES) / TEMPLATES
    templates = {path.name: path.read_text() for path in sorted(folder.glob("*.jinja"))}
    outcomes = {name: try_template(template) for name, template in templates.items()}
    kept = {name: kept_thoughts(template) for name, template in templates.items()}
    verdicts = {name: _verdict(name, outcomes[name], kept[name]) for name in templates}
    for name, outcome in outcomes.items():
        formats = f"{outcome.calls or '-':14} {outcome.thoughts or '-':12}"
        print(f"{name:58} {formats} {kept[name]:9} {verdicts[name]}")
    missing = (EXPECTED.keys() | KEPT_THOUGHTS.keys()) - templates.keys()
    for name in sorted(missing):
        print(f"{name:58} is not in {PACKAGE} {VERSION}")
    return int(bool(missing) or set(verdicts.values()) != {"right"})


def _verdict(name: str, outcome: Outcome, kept: str) -> str:
    if kept != (expected_kept := KEPT_THOUGHTS.get(name, NEVER)):
        return f"WRONG: earlier thoughts are expected {expected_kept}"
    expected = EXPECTED.get(name, (None, None))
    if (outcome.calls, outcome.thoughts) != expected:
        return f"WRONG: {expected} is expected"
    if name in WRITE_NO_CALLS and outcome.problem == WRITES_NO_CALL:
        return "right"
    return f"WRONG: {outcome.problem}" if outcome.problem else "right"


if __name__ == "__main__":
    sys.exit(main())
