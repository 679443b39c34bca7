"""``python -m tests.documentation.site``: lays out what the site is built of, in build/site.

The first page of the site is README.md, whose links are rewritten because README.md lies above the root of the site.
Files are copied rather than linked: zensical does not notice that the target of a link has changed.
"""

import re
import shutil

from tests.documentation.parts import ROOT, pages

DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "site"
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:]+)(?=[)#])")
_TURNED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "https://www.apache.org/licenses/LICENSE-2.0",
    "SECURITY.md": "security.md",
}
# Pages of the site that lie above docs/.
_ABOVE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def lay_out() -> None:
    """Make `FOLDER` anew. Raises `FileNotFoundError` for a picture that is not there, which no builder looks for.

    The folder is not an argument: whatever was named would be removed.
    """
    for page in pages():
        for picture in _PICTURE.findall(page.read_text()):
            (page.parent / picture).resolve(strict=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shown = FOLDER / "docs"
    for folder in (".", "images", "notes", "tutorials", "examples"):
        (shown / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(DOCS / "zensical.toml", FOLDER)
    for file in [
        *DOCS.glob("*.md"),
        *DOCS.glob("notes/*.md"),
        *DOCS.glob("tutorials/*.md"),
        *DOCS.glob("images/*.*"),
        *DOCS.glob("examples/*.*"),
    ]:
        shutil.copy(file, shown / file.relative_to(DOCS))
    for name, page_of_site in _ABOVE.items():
        (shown / page_of_site).write_text(_LINK.sub(_turned, (ROOT / name).read_text()))


def _turned(link: re.Match[str]) -> str:
    target = link["target"].removeprefix("docs/")
    return _TURNED.get(target, target)


if __name__ == "__main__":
    lay_out()
