"""Whose request is being served, for those that divide their work among callers.

A variable of the task's context: to hand it down through all that texts pass would name it in some dozen places.
"""

from contextvars import ContextVar

from numaserve.server.scheduler.client import EVERYBODY, Client

CALLER: ContextVar[Client] = ContextVar("caller", default=EVERYBODY)
