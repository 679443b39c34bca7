"""The caller of the current request, for components that divide their work fairly among callers.

It is a context variable of the task: passing it as an argument would add it to some dozen signatures.
"""

from contextvars import ContextVar

from numaserve.server.scheduler.client import EVERYBODY, Client

CALLER: ContextVar[Client] = ContextVar("caller", default=EVERYBODY)
