"""The layers of the architecture, read from the imports of each module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autostrategy

PACKAGE = Path(autostrategy.__file__).parent

# A module imports from rows above its own, or from its own folder. An import
# inside a function counts; one for type checkers alone does not.
ROWS = (
    ("errors", "plain_table", "startup_noise", "versions"),
    ("json_values",),
    ("facts",),
    ("scaling", "cost_model", "workload", "device_selection"),
    ("facts_text", "plan_warnings"),
    ("plan_text",),
    ("planner", "hardware", "clusters"),
    ("prober",),
    ("launchers", "rendezvous", "meeting", "report"),
    ("exchange",),
    ("diagnosis",),
    ("tensorflow_internals",),
    ("parameter_servers",),
    ("builder",),
    ("training",),
    ("script",),
    ("cli", "__init__"),
    ("__main__",),
)
ROW = {part: index for index, row in enumerate(ROWS) for part in row}
TENSORFLOW_FROM = ROW["tensorflow_internals"]
MODULES = sorted(PACKAGE.rglob("*.py"))


def part(path):
    """The module, or the folder, that has a row."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def is_for_type_checkers(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node):
    """Full names of everything that `node` imports."""
    if is_for_type_checkers(node):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_has_a_row_and_imports_only_from_above_it(path):
    assert part(path) in ROW, f"give {part(path)} a row in tests/test_layers.py"
    row = ROW[part(path)]
    for name in imports(ast.parse(path.read_text())):
        first, *rest = name.split(".")
        if first == "autostrategy" and rest and rest[0] in ROW:
            assert ROW[rest[0]] < row or rest[0] == part(path), f"imports {name}"
        if first in ("tensorflow", "keras"):
            assert row >= TENSORFLOW_FROM, f"imports {name}"


@pytest.mark.parametrize(
    "modules",
    [
        "autostrategy",
        "autostrategy.prober",
        "autostrategy.planner",
        "autostrategy.diagnosis.doctor",
        "autostrategy.cli, autostrategy.script",
    ],
)
def test_nothing_left_of_the_plan_imports_tensorflow(modules):
    code = f"import sys, {modules}; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_module_stays_short_enough_to_be_read_at_once():
    lengths = {path.name: len(path.read_text().splitlines()) for path in MODULES}

    assert {name: lines for name, lines in lengths.items() if lines >= 400} == {}
