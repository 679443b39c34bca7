"""``python -m tests.documentation``: writes the generated parts of README.md and docs/."""

from tests.documentation.parts import ROOT, pages, renewed


def main() -> None:
    """Write what is not fresh, and name it."""
    for page in pages():
        text = page.read_text()
        fresh = renewed(text)
        if fresh != text:
            page.write_text(fresh)
            print(f"{page.relative_to(ROOT)} was written anew")


if __name__ == "__main__":
    main()
