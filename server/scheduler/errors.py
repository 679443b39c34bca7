"""Errors of the scheduler."""


class SequenceTooLong(ValueError):
    """A prompt that could never be computed here, however long it waited; the message is meant for the client."""


class ResultMismatch(ValueError):
    """A step's result is not the answer to the oldest plan in flight: the workers can no longer be trusted."""


class SchedulerIntegrityError(AssertionError):
    """The scheduler's own books do not add up: a page or a slot is lost, or is held twice."""
