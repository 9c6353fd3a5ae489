"""The marker of the suite; all of it can be left out with `-m "not support"`."""


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "support: every feature under every strategy; takes minutes for each column"
    )
