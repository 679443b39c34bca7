"""Fifty JSON schemas as applications have them, by name; written for these tests, after the kinds that are common."""

from typing import Any

from tests.support.schemas import composed, configuration, extraction, records, services

SCHEMAS: dict[str, dict[str, Any]] = {
    **extraction.SCHEMAS,
    **records.SCHEMAS,
    **services.SCHEMAS,
    **configuration.SCHEMAS,
    **composed.SCHEMAS,
}
