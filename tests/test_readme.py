"""What the README says can be done, done."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autostrategy import cli

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("snippet", PYTHON, ids=range(1, len(PYTHON) + 1))
def test_a_python_snippet_runs(snippet, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("autostrategy ")])
def test_a_command_line_is_one_that_the_parser_takes(command):
    words = shlex.split(command.partition(" > ")[0])[1:]
    if words[0] == "run":
        words = words[:2]  # what follows the script is the script's

    cli.parser().parse_args(words)


def test_scripts_and_extras_in_commands_are_there():
    text = "\n".join(COMMANDS)
    extras = set(re.findall(r"\.\[(\w+)\]", text))
    project = (ROOT / "pyproject.toml").read_text("utf-8")

    assert len(extras) == 2
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    scripts = set(re.findall(r"\S+\.py\b", text))
    assert scripts
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def test_the_plan_of_another_machine_is_the_one_printed():
    command, printed = re.search(
        r"```bash\nautostrategy (plan --facts [^\n]*)\n```\n\n```text\n(.*?)```", TEXT, re.DOTALL
    ).groups()
    words = shlex.split(command)
    words[2] = str(ROOT / words[2])
    out = io.StringIO()

    with contextlib.redirect_stdout(out):
        assert cli.main(words) == 0

    assert out.getvalue() == printed


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)

    assert [link for link in links if "//" not in link and not (ROOT / link).exists()] == []
