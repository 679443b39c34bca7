"""``python -m tests.documentation.site``: lays out what the site is built of, in build/site.

The site's first page is README.md, which lies above the folder that the site begins in: its links are turned. Links to
the files of docs/ instead of copies would be no help while writing: zensical does not see that such a file has changed.
"""

import re
import shutil

from tests.documentation.parts import ROOT, pages

DOCS = ROOT / "docs"
FOLDER = ROOT / "build" / "site"
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:]+)(?=[)#])")
_TURNED = {"CONTRIBUTING.md": "contributing.md", "LICENSE": "https://www.apache.org/licenses/LICENSE-2.0"}


def lay_out() -> None:
    """Make `FOLDER` anew. Raises `FileNotFoundError` for a picture that is not there, which no builder looks for.

    The folder is not an argument: whatever was named would be removed.
    """
    for page in pages():
        for picture in _PICTURE.findall(page.read_text()):
            (page.parent / picture).resolve(strict=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shown = FOLDER / "docs"
    (shown / "images").mkdir(parents=True)
    shutil.copy(DOCS / "zensical.toml", FOLDER)
    for file in [*DOCS.glob("*.md"), *DOCS.glob("images/*.*")]:
        shutil.copy(file, shown / file.relative_to(DOCS))
    for name, page_of_site in (("README.md", "index.md"), ("CONTRIBUTING.md", "contributing.md")):
        (shown / page_of_site).write_text(_LINK.sub(_turned, (ROOT / name).read_text()))


def _turned(link: re.Match[str]) -> str:
    target = link["target"].removeprefix("docs/")
    return _TURNED.get(target, target)


if __name__ == "__main__":
    lay_out()
