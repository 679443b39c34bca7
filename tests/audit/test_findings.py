import pytest

from tests.audit.findings import is_allowed, license_findings, vulnerability_findings

ALLOWED = {"MIT", "Zlib", "License :: BSD License"}


@pytest.mark.parametrize(
    ("expression", "allows"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("License :: BSD License", True),
        ("MIT AND Zlib", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only OR MIT AND Zlib", True),
        ("(GPL-3.0-only OR MIT) AND Zlib", True),
        ("(MIT OR Zlib) AND GPL-3.0-only", False),
    ],
)
def test_a_license_is_allowed_when_every_part_that_binds_is(expression: str, allows: bool) -> None:
    assert is_allowed(expression, ALLOWED) is allows


@pytest.mark.parametrize("expression", ["(MIT", "MIT AND", "MIT Zlib", "MIT WITH something"])
def test_an_expression_that_is_not_understood_is_no_permission(expression: str) -> None:
    with pytest.raises(ValueError, match="SPDX"):
        is_allowed(expression, ALLOWED)


def test_a_package_is_found_by_any_license_that_is_not_allowed_and_by_none() -> None:
    mit, gpl = {"license": {"id": "MIT"}}, {"expression": "GPL-3.0-only"}
    bsd = {"license": {"name": "License :: BSD License"}}
    components = [
        {"name": "good", "version": "1", "licenses": [mit, bsd]},
        {"name": "bad", "version": "2", "licenses": [mit, gpl]},
        {"name": "silent", "version": "3"},
    ]
    assert [*license_findings(components, ALLOWED)] == ["bad 2: license GPL-3.0-only", "silent 3: license unknown"]


def test_packages_that_nobody_knows_of_are_a_finding_as_advisories_are() -> None:
    advisory = {"id": "A-1", "fix_versions": ["3"]}
    packages = [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [advisory]},
        {"name": "unheard", "skip_reason": "not there"},
    ]
    found = [*vulnerability_findings(packages)]
    assert found[0] == "bad 2: A-1, mended in 3"
    assert "unheard" in found[1]
    assert len(found) == 2
