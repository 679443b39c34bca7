from tests.documentation import packages
from tests.documentation.parts import PARTS, ROOT, named_in, pages, renewed
from tests.real.tried import TRIED


def test_the_generated_parts_of_the_documentation_are_fresh() -> None:
    texts = {page.relative_to(ROOT): page.read_text() for page in pages()}
    stale = [str(name) for name, text in texts.items() if renewed(text) != text]
    assert not stale, "run `make docs`"
    assert sorted(part for text in texts.values() for part in named_in(text)) == sorted(PARTS)


def test_every_checkpoint_that_was_tried_has_a_family_in_the_table() -> None:
    assert [each.name for each in TRIED if each.name not in packages.models()] == []
