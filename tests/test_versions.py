import pytest

from autostrategy import versions


@pytest.mark.parametrize(
    ("package", "version", "supported"),
    [
        ("keras", "3.12.0", True),
        ("keras", "3.15.1", True),
        ("keras", "3.16.0", False),
        ("keras", "2.15.0", False),
        ("tensorflow", "2.20.0-rc1", True),
        ("tensorflow", "2.19.1", False),
        ("tensorflow", "2.22.0", False),
    ],
)
def test_a_version_is_supported_or_refused_with_the_command_that_mends_it(
    package, version, supported
):
    refusal = versions.refusal(package, version)

    assert (refusal is None) is supported
    if refusal:
        assert f"Received: {version}. Run: pip install '{package}>=" in refusal
