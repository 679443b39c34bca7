"""Whose request is being served, for those that divide their work among callers.

A variable of the task's context: to hand it down through all that texts pass would name it in some dozen places.
"""

from contextvars import ContextVar

CALLER: ContextVar[str] = ContextVar("caller", default="")
