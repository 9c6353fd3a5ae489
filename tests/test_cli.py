"""Each command parses, calls one verb and prints its value."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

import autostrategy
from autostrategy import cli
from autostrategy.errors import LaunchError, PlanError, ProbeError
from autostrategy.facts import Cluster, Device, Facts, Host, Job
from autostrategy.planner import Plan, plan

COMMAND = [sys.executable, "-m", "autostrategy"]

FLAGS = {
    "": ["--help", "--version"],
    "doctor": ["--cluster", "--help", "--json"],
    "probe": ["--help", "--json"],
    "plan": [
        "--batch-scaling",
        "--batch-size",
        "--devices",
        "--facts",
        "--help",
        "--json",
        "--learning-rate",
        "--optimizer",
        "--strategy",
    ],
    "run": ["--help", "--verbose", "-m", "SCRIPT"],
}


def facts(gpus=0, workers=(), **fields):
    devices = tuple(
        Device(kind="gpu", index=index, name="H100", visible_index=index, memory_bytes=2**36)
        for index in range(gpus)
    )
    jobs = (Job(name="worker", addresses=tuple(workers)),)
    return Facts(
        host=Host(
            name="host7",
            platform="linux",
            logical_cores=4,
            usable_cores=2.0,
            memory_bytes=2**33,
            memory_available_bytes=2**32,
            devices=devices,
            **fields,
        ),
        cluster=Cluster(source="TF_CONFIG", jobs=jobs, task_type="worker", task_index=0)
        if workers
        else None,
    )


@pytest.fixture
def probed(monkeypatch):
    """Stand in for the prober; the test appends the facts, or the error, to the list."""
    answers = [facts()]

    def probe():
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    module = types.ModuleType("autostrategy.prober")
    module.probe = probe
    monkeypatch.setitem(sys.modules, "autostrategy.prober", module)
    monkeypatch.setattr(autostrategy, "prober", module, raising=False)
    return answers


@pytest.fixture
def file(tmp_path):
    """Facts of a host with two GPUs, as a file."""
    path = tmp_path / "facts.json"
    path.write_text(facts(gpus=2).to_json())
    return str(path)


def test_flags_are_exactly_these():
    """A flag is a decision: change this list when you decide to have one."""
    top = cli.parser()
    (commands,) = (
        action for action in top._actions if isinstance(action, argparse._SubParsersAction)
    )
    found = {"": top, **commands.choices}

    assert {
        name: sorted(
            action.option_strings[-1] if action.option_strings else action.metavar
            for action in command._actions
            if action is not commands
        )
        for name, command in found.items()
    } == FLAGS


@pytest.mark.parametrize("command", ["", "probe", "plan", "doctor", "run"])
def test_help_teaches_with_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])

    assert ended.value.code == 0
    assert f"  autostrategy {command}" in capsys.readouterr().out


def test_nothing_asked_prints_the_help(capsys):
    assert cli.main([]) == 0
    assert "autostrategy probe" in capsys.readouterr().out


def test_version_is_the_installed_one(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("autostrategy 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["plan", "--batch-size", "many"],
        ["plan", "--batch", "3"],
        ["run"],
        ["run", "--verbose"],
        ["run", "-m"],
        ["run", "--json", "x.py"],
        ["run", "no_such_file.py"],
    ],
)
def test_wrong_usage_ends_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)

    assert ended.value.code == 2
    assert "usage: autostrategy" in capsys.readouterr().err


def test_a_missing_script_is_named_with_the_working_directory(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "no_such_file.py"])

    assert "Received: 'no_such_file.py'. The working directory is /" in capsys.readouterr().err


def test_probe_prints_facts_in_brief(probed, capsys):
    probed.append(facts(gpus=1, driver_version="580.1", cuda_driver_version="13.0"))

    assert cli.main(["probe"]) == 0
    out = capsys.readouterr().out
    for words in ("host7 (linux)", "2 usable of 4", "4.0 GiB free of 8.0", "GPU:0", "H100, 64.0"):
        assert words in out
    assert "580.1, CUDA up to 13.0" in out


def test_probe_as_json_is_the_facts(probed, capsys):
    assert cli.main(["probe", "--json"]) == 0
    assert Facts.from_json(capsys.readouterr().out) == probed[-1]


def test_plan_prints_the_plan_of_this_machine(probed, capsys):
    assert cli.main(["plan"]) == 0
    assert capsys.readouterr().out == f"{plan(facts())}\n"


def test_plan_of_a_file_takes_every_wish(file, capsys):
    arguments = ["--batch-size", "32", "--learning-rate", "0.1", "--optimizer", "SGD"]
    arguments += ["--devices", "GPU:1,CPU:0", "--strategy", "mirrored", "--batch-scaling", "sqrt"]

    assert cli.main(["plan", "--json", "--facts", file, *arguments]) == 0
    assert Plan.from_json(capsys.readouterr().out) == plan(
        facts(gpus=2),
        batch_size=32,
        learning_rate=0.1,
        optimizer="SGD",
        devices=("GPU:1", "CPU:0"),
        strategy="mirrored",
        batch_scaling="sqrt",
    )


def test_devices_may_be_a_count(file, capsys):
    assert cli.main(["plan", "--facts", file, "--devices", "1"]) == 0
    assert "one_device on GPU:0" in capsys.readouterr().out


def test_a_terminal_gets_a_drawn_table(probed, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert cli.main(["plan"]) == 0
    assert cli.main(["probe"]) == 0
    out = capsys.readouterr().out
    assert "┏━━" in out
    assert "global batch" in out
    assert "host7" in out


@pytest.mark.parametrize("error", [ProbeError("TF_CONFIG must be JSON."), PlanError("no")])
def test_an_error_is_one_sentence_and_status_1(error, probed, capsys):
    probed.append(error)

    assert cli.main(["plan"]) == 1
    assert capsys.readouterr() == ("", f"autostrategy: {error}\n")


def test_with_json_an_error_is_an_object_too(probed, capsys):
    assert cli.main(["plan", "--json", "--devices", "0"]) == 1

    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "PlanError"
    assert error["message"].startswith("devices must be a whole number, at least 1. Received: 0")


@pytest.mark.parametrize("content", [None, b"\xff\xfe\xfa"])
def test_a_facts_file_that_cannot_be_read_is_named(content, tmp_path, capsys):
    path = tmp_path / "none.json"
    if content:
        path.write_bytes(content)

    assert cli.main(["plan", "--facts", str(path)]) == 1
    err = capsys.readouterr().err
    assert f"--facts must name a readable text file. Received: {path}" in err
    assert "autostrategy probe --json > facts.json" in err


def test_facts_come_from_stdin_too():
    done = subprocess.run(
        [*COMMAND, "plan", "--facts", "-"],
        input=facts(gpus=2).to_json(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("mirrored on GPU:0, GPU:1\n")


def test_a_reader_that_leaves_is_no_error(file):
    process = subprocess.Popen(
        [*COMMAND, "plan", "--facts", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()

    assert (process.wait(), process.stderr.read()) == (141, b"")
    process.stderr.close()


def test_ctrl_c_ends_with_status_130(probed):
    probed.append(KeyboardInterrupt())  # an Exception it is not, so probe returns it

    def interrupt():
        raise KeyboardInterrupt

    sys.modules["autostrategy.prober"].probe = interrupt

    assert cli.main(["probe"]) == 130


# run

SCRIPT = """\
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "level": os.environ.get("TF_CPP_MIN_LOG_LEVEL"), "tensorflow": "tensorflow" in sys.modules,
}))
"""


def run(*arguments, folder, env=()):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.run(
        [*COMMAND, "run", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment | dict(env),
        timeout=60,
    )


def test_a_script_sees_what_python_would_show_it(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(SCRIPT)

    done = run("job/train.py", "--json", "-m", "x", folder=tmp_path)

    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "argv": ["job/train.py", "--json", "-m", "x"],
        "path": str(tmp_path / "job"),
        "name": "__main__",
        "file": "job/train.py",
        "main": True,
        "level": "2",
        "tensorflow": False,
    }


def test_a_module_sees_what_python_m_would_show_it(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(SCRIPT)

    done = run("-m", "job.train", "--help", folder=tmp_path)

    seen = json.loads(done.stdout)
    assert seen["argv"] == [str(tmp_path / "job" / "train.py"), "--help"]
    assert (seen["path"], seen["name"], seen["main"]) == (str(tmp_path), "__main__", True)


@pytest.mark.parametrize(
    ("arguments", "env", "level"),
    [(["--verbose"], {}, None), ([], {"TF_CPP_MIN_LOG_LEVEL": "0"}, "0")],
)
def test_the_log_level_is_left_alone_when_asked(arguments, env, level, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    done = run(*arguments, "train.py", folder=tmp_path, env=env)

    assert json.loads(done.stdout)["level"] == level


@pytest.mark.parametrize(
    ("script", "status", "err"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('bad news')", 1, "bad news\n"),
        ("raise SystemExit", 0, ""),
    ],
)
def test_the_exit_status_is_the_script_s(script, status, err, tmp_path):
    (tmp_path / "train.py").write_text(script)

    done = run("train.py", folder=tmp_path)

    assert (done.returncode, done.stderr) == (status, err)


@pytest.mark.parametrize(
    "script",
    [
        "def f():\n    1 / 0\n\nf()\n",
        "def broken(:\n",
        "import autostrategy.errors as e\nraise e.PlanError('from the script')\n",
        "raise KeyboardInterrupt\n",
    ],
)
def test_a_traceback_is_the_one_python_prints(script, tmp_path):
    (tmp_path / "train.py").write_text(script)
    plain = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path
    )

    done = run("train.py", folder=tmp_path)

    assert done.stderr.replace(str(tmp_path) + "/", "") == plain.stderr.replace(
        str(tmp_path) + "/", ""
    )
    # Python ends itself with SIGINT after Ctrl-C, which a shell reports as 130.
    assert done.returncode == (130 if plain.returncode == -signal.SIGINT else plain.returncode)


@pytest.mark.parametrize(
    ("found", "prepared"),
    [(facts(), 0), (facts(workers=["a:1"]), 0), (facts(workers=["a:1", "b:1"]), 1)],
)
def test_only_a_cluster_makes_its_strategy_before_the_script(
    found, prepared, probed, monkeypatch, tmp_path
):
    probed.append(found)
    plans = []
    builder = types.ModuleType("autostrategy.builder")
    builder.prepare = plans.append
    monkeypatch.setitem(sys.modules, "autostrategy.builder", builder)
    monkeypatch.setattr(autostrategy, "builder", builder, raising=False)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    (tmp_path / "train.py").write_text("")

    assert cli.main(["run", str(tmp_path / "train.py")]) == 0
    assert plans == [plan(found)] * prepared


def test_a_cluster_that_cannot_start_is_one_sentence(probed, monkeypatch, tmp_path, capsys):
    probed.append(LaunchError("worker b:1 must answer within 60 s."))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    (tmp_path / "train.py").write_text("print('never')")

    assert cli.main(["run", str(tmp_path / "train.py")]) == 1
    assert capsys.readouterr() == ("", "autostrategy: worker b:1 must answer within 60 s.\n")


@pytest.mark.parametrize("arguments", [["probe", "--json"], ["plan", "--json"]])
def test_looking_and_deciding_import_no_tensorflow_and_are_quick(arguments):
    code = (
        "import sys; from autostrategy.cli import main; "
        f"status = main({arguments!r}); "
        "sys.exit(status or {'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules) or 0)"
    )
    seconds = []
    # The best of three, since this machine may be busy with other tests.
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)

    assert min(seconds) < 0.4
