"""Prompts that are served alone, and what they find in the cache."""

from scheduler_simulation import NAN_TOKEN, Service

from tests.support.scheduler_integrity import check_integrity


def own(number: int, count: int = 9) -> list[int]:
    """Tokens that only one prompt has."""
    return [100 * number + index for index in range(count)]


def serve(server: Service, prompt: list[int], max_new_tokens: int = 1, **options: object) -> int | None:
    """Serve a request alone. Return the number of tokens that it found in the cache."""
    request = server.add(prompt, max_new_tokens, **options)
    seq = server.scheduler.live.by_id[str(request.seed)]
    server.drain()
    check_integrity(server.scheduler)
    assert request.ends == ["nan"] if NAN_TOKEN in prompt else request.is_answered
    return seq.cached_tokens
