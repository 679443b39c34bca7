"""A short run of `make chaos`."""

from tests.chaos.run import Options, run


def test_workers_die_under_load_and_no_answer_says_anything_else() -> None:
    report = run(Options(seed=1, kills=2, requests=48))
    told = "\n".join(report.lines())
    assert not report.gone and not report.missed, told
    assert report.hits.total() == len(report.deaths) == 2, told
    assert not report.different, told
    assert report.after is not None and report.after.active_pages == 0, told
