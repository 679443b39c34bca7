"""The limits that /server_info shows."""

from numaserve.server.engine.views.info import limits_info
from numaserve.workers.interface.windows import Window, WindowTable

from tests.support.plan_limits import plan_limits


def test_window_tables_are_shown_where_there_are_some() -> None:
    config = plan_limits(64, 1024, 1, 64)
    assert "window_tables" not in limits_info(config)
    tables = (WindowTable(Window(32), 100), WindowTable(Window(64, aligned=True), 200))
    shown = limits_info(plan_limits(64, 1024, 1, 64, window_tables=tables))["window_tables"]
    assert shown == [{"window": 32, "num_pages": 100}, {"window": 64, "num_pages": 200}]
