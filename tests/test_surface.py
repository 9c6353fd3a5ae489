"""The public names are one sorted list."""

import types

import pytest

import autostrategy


def test_public_names_are_exactly_the_documented_ones():
    public = {name for name in dir(autostrategy) if not name.startswith("_")}
    modules = {
        name
        for name in public
        if isinstance(getattr(autostrategy, name), types.ModuleType) or name == "annotations"
    }

    assert sorted(
        public - modules - {"Any", "TYPE_CHECKING"}, key=lambda name: (name.casefold(), name)
    ) == (autostrategy.__all__)


def test_every_public_name_is_there_and_says_what_it_is():
    for name in autostrategy.__all__:
        assert getattr(autostrategy, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        autostrategy.trian  # noqa: B018


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert autostrategy.__version__ == version("autostrategy")
