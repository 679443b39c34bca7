"""What is wrong with packages: their licenses, by a CycloneDX document, and advisories, by pip-audit's."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

_TOKEN = re.compile(r"[()]|[^\s()]+")


def license_findings(components: Sequence[Mapping[str, Any]], allowed: Collection[str]) -> Iterator[str]:
    """A line for each of the CycloneDX `components` that names no license, or one that is not `allowed`."""
    for component in components:
        named = [_name(each) for each in component.get("licenses", ())]
        wrong = [name for name in named if not is_allowed(name, allowed)]
        if wrong or not named:
            yield f"{component['name']} {component['version']}: license {', '.join(wrong) or 'unknown'}"


def is_allowed(expression: str, allowed: Collection[str]) -> bool:
    """Whether a license, or an SPDX expression with AND, OR and parentheses, lets the package be used.

    Raises `ValueError` for an expression that is not closed.
    """
    if expression in allowed:
        return True
    tokens = _TOKEN.findall(expression)[::-1]
    result = _any_of(tokens, allowed)
    if tokens:
        raise ValueError(f"{expression} is no SPDX expression")
    return result


def vulnerability_findings(packages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each advisory, and one for all packages of which nothing is known: silence is not soundness."""
    unknown = [package["name"] for package in packages if "vulns" not in package]
    for package in packages:
        for each in package.get("vulns", ()):
            mended = ", ".join(each["fix_versions"]) or "no version"
            yield f"{package['name']} {package['version']}: {each['id']}, mended in {mended}"
    if unknown:
        named = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        yield f"nobody told whether there are advisories for {len(unknown)} packages ({named}): try ADVISORIES=osv"


def _name(entry: Mapping[str, Any]) -> str:
    if "expression" in entry:
        return str(entry["expression"])
    return str(entry["license"].get("id") or entry["license"]["name"])


def _any_of(tokens: list[str], allowed: Collection[str]) -> bool:
    """Of tokens in reverse order, which are taken away."""
    result = _all_of(tokens, allowed)
    while tokens and tokens[-1] == "OR":
        tokens.pop()
        result = _all_of(tokens, allowed) or result
    return result


def _all_of(tokens: list[str], allowed: Collection[str]) -> bool:
    result = _one(tokens, allowed)
    while tokens and tokens[-1] == "AND":
        tokens.pop()
        result = _one(tokens, allowed) and result
    return result


def _one(tokens: list[str], allowed: Collection[str]) -> bool:
    if not tokens:
        raise ValueError("an SPDX expression ends too early")
    token = tokens.pop()
    if token != "(":
        return token in allowed
    result = _any_of(tokens, allowed)
    if not tokens or tokens.pop() != ")":
        raise ValueError("a parenthesis of an SPDX expression is not closed")
    return result
