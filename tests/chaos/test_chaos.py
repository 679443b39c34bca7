"""A short run of `make chaos`."""

from tests.chaos.run import Options, run


def test_workers_die_under_load_and_no_answer_says_anything_else() -> None:
    report = run(Options(seed=4, kills=1, requests=48, embeddings=0))
    told = "\n".join(report.lines())
    assert not report.gone and not report.missed, told
    assert report.hits["draining"] == 1 and len(report.deaths) == 2, told
    assert not report.different, told
    (part,) = report.parts
    assert part.before is not None and part.after is not None, told
    assert part.after.active_pages == 0 and part.after.pages == part.before.pages, told
