"""Gathering from a folder that stands for /, and the whole way to the command line."""

import json
import os
import socket
import subprocess
import sys

import pytest

import autostrategy
from autostrategy import prober
from autostrategy.diagnosis import asking, gathering
from autostrategy.diagnosis.doctor import doctor
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Facts, Job

COMMAND = [sys.executable, "-m", "autostrategy", "doctor"]
CARD = {
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
    # The card's sound device, and a network card.
    "sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n",
    "sys/bus/pci/devices/0000:02:00.0/vendor": "0x1ae0\n",
    "sys/bus/pci/devices/0000:02:00.0/class": "0x020000\n",
}


def write(root, files):
    base = {"proc/cpuinfo": "processor\t: 0\n", "proc/meminfo": "MemTotal: 1024 kB\n"}
    for path, text in (base | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def first(root, env=()):
    return doctor(env=dict(env), root=root, hostname="node7").findings[0]


def test_the_public_name_is_the_function():
    """`autostrategy.doctor` is no module, whichever was imported first."""
    assert autostrategy.doctor is doctor


def test_a_machine_without_a_gpu_is_healthy(tmp_path):
    assert doctor(env={}, root=write(tmp_path, {})).findings == ()


def test_a_card_on_pci_without_a_driver(tmp_path):
    finding = first(write(tmp_path, {**CARD, "etc/os-release": 'NAME=x\nID="debian"\n'}))

    assert finding.what.startswith("1 NVIDIA GPU is here, and NVIDIA's driver is not installed")
    assert finding.evidence.startswith("PCI 0000:01:00.0;")
    assert finding.remedy == "sudo apt-get install nvidia-driver && sudo reboot"


@pytest.mark.parametrize(
    ("files", "env", "by"),
    [
        ({".dockerenv": ""}, {}, "/.dockerenv"),
        ({"run/.containerenv": ""}, {}, "/run/.containerenv"),
        ({"proc/self/cgroup": "4:cpu:/docker/0a1b\n"}, {}, "the control group /docker"),
        ({"proc/self/cgroup": "0::/kubepods/pod1/c1\n"}, {}, "the control group /kubepods"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "KUBERNETES_SERVICE_HOST"),
    ],
)
def test_a_container_without_the_gpus_of_its_host(files, env, by, tmp_path):
    finding = first(write(tmp_path, CARD | files), {"NVIDIA_VISIBLE_DEVICES": "all", **env})

    assert finding.what == "This container was not given the GPUs of its host."
    assert finding.evidence.startswith(f"a container by {by}, NVIDIA_VISIBLE_DEVICES=all")


def test_a_card_that_is_passed_through_is_not_this_hosts(tmp_path):
    root = write(tmp_path, {**CARD, "sys/bus/pci/drivers/vfio-pci/bind": ""})
    (root / "sys/bus/pci/devices/0000:01:00.0/driver").symlink_to("../../drivers/vfio-pci")

    assert doctor(env={}, root=root).findings == ()


def test_a_loaded_driver_is_no_finding(tmp_path):
    root = write(
        tmp_path,
        {
            **CARD,
            "proc/driver/nvidia/version": "NVRM version: 550.54.15",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            "usr/local/cuda/nvvm/libdevice/libdevice.10.bc": "",
        },
    )

    assert doctor(env={}, root=root).findings == ()


@pytest.mark.parametrize(
    ("files", "env", "says"),
    [
        ({"home/ada/.keras/keras.json": '{"backend": "jax"}'}, {"HOME": "/home/ada"}, "keras.json"),
        ({"etc/keras/keras.json": '{"backend": "jax"}'}, {"KERAS_HOME": "/etc/keras"}, "keras.js"),
        ({}, {"KERAS_BACKEND": "jax"}, "KERAS_BACKEND"),
    ],
)
def test_another_backend_is_found_where_keras_looks(files, env, says, tmp_path):
    finding = first(write(tmp_path, files), env)

    assert finding.what.startswith("Keras would run on jax")
    assert finding.evidence.startswith(says)


@pytest.mark.parametrize("text", ["{", "[]", '{"backend": 3}'])
def test_a_strange_keras_json_is_no_finding(text, tmp_path):
    root = write(tmp_path, {"home/ada/.keras/keras.json": text})

    assert doctor(env={"HOME": "/home/ada"}, root=root).findings == ()


def test_amd_gpus_are_those_nodes_with_vector_units(tmp_path):
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\n"}
    for node in (1, 2, 10, 11):
        files[f"{nodes}/{node}/properties"] = f"simd_count 440\nunique_id {node}\n"
    env = {"ROCR_VISIBLE_DEVICES": "1,GPU-000000000000000a", "HIP_VISIBLE_DEVICES": "1"}

    finding = first(write(tmp_path, files), env)

    assert finding.evidence == "4 AMD GPUs, of which ROCm shows this process 2"


@pytest.mark.parametrize(
    ("env", "name", "said"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG", "TF_CONFIG must be JSON"),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}'},
            "TF_CONFIG",
            "must have an integer",
        ),
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NODELIST": "n[01-",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_PROCID": "1",
            },
            "the Slurm step",
            "n[01-",
        ),
    ],
)
def test_a_contradiction_is_a_finding_and_not_an_error(env, name, said, tmp_path):
    diagnosis = doctor(env=env, root=write(tmp_path, {}))

    assert diagnosis.findings[0].what.startswith(f"Nothing can be planned, because {name} ")
    assert said in diagnosis.findings[0].evidence
    assert diagnosis.status == 2


def test_what_no_variable_explains_stays_an_error(monkeypatch, tmp_path):
    def probe(**_):
        raise ProbeError("Facts must be there.")

    monkeypatch.setattr(prober, "probe", probe)

    with pytest.raises(ProbeError, match="Facts must be there"):
        doctor(env={"PATH": "/bin"}, root=tmp_path)


def test_secrets_and_folders_of_a_user_are_not_in_the_output(tmp_path):
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "HF_TOKEN": "hf_abcdef",
        "SSH_CONNECTION": "203.0.113.9",
        "USER": "ada",
        "HOME": "/home/ada",
        "LD_LIBRARY_PATH": "/home/ada/lib",
        "KERAS_BACKEND": "jax",
        "TF_CONFIG": "{",
    }
    diagnosis = doctor(env=secrets, root=write(tmp_path, CARD), hostname="node7")

    for text in (diagnosis.explain(), diagnosis.to_json()):
        assert not [word for word in ("wJalr", "hf_abc", "203.0", "ada", "node7") if word in text]


def test_a_home_folder_in_evidence_is_shortened(monkeypatch, tmp_path):
    monkeypatch.setattr(gathering, "_container", lambda root, env: "/home/ada/rootfs/.dockerenv")
    env = {"HOME": "/home/ada", "NVIDIA_VISIBLE_DEVICES": "all"}

    assert "by ~/rootfs/.dockerenv" in first(write(tmp_path, CARD), env).evidence


def test_libraries_are_looked_for_in_another_process(tmp_path):
    """pip's folders are searched too; what is no library is missing with its reason."""
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcudnn.so.9").write_text("no library")

    missing, version = asking.libraries({**os.environ, "PYTHONPATH": str(tmp_path)})

    assert set(missing) <= set(asking.CUDA_LIBRARIES)
    if version is None:
        assert "libcudnn.so.9" in missing


FAKE = """
import sys, types
sys.stderr.write("Could not find cuda drivers on your machine\\n")
sysconfig = types.SimpleNamespace(
    get_build_info=lambda: {"cuda_compute_capabilities": ["sm_60", "compute_90"]}
)
config = types.SimpleNamespace(list_physical_devices=lambda kind: ["a"])
test = types.SimpleNamespace(is_built_with_cuda=lambda: True)
"""


@pytest.mark.parametrize(
    ("code", "seconds", "answer"),
    [
        (
            FAKE,
            60,
            asking.TensorFlowAnswer(
                gpus=1,
                compute_capabilities=("sm_60", "compute_90"),
                stderr="Could not find cuda drivers on your machine\n",
            ),
        ),
        ("import os; os._exit(3)", 60, asking.TensorFlowAnswer(fault="it ended with status 3")),
        (
            "import time; time.sleep(60)",
            0.5,
            asking.TensorFlowAnswer(fault="it did not answer within 0.5 s", timed_out=True),
        ),
    ],
)
def test_tensorflow_is_asked_in_another_process(code, seconds, answer, tmp_path):
    (tmp_path / "tensorflow.py").write_text(code)

    assert asking.tensorflow({"PYTHONPATH": str(tmp_path)}, seconds=seconds) == answer


def test_a_python_that_cannot_be_started_is_an_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    assert "No such file" in asking.tensorflow({}).fault


@pytest.fixture
def listening():
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


def gathered(tmp_path, *, cluster):
    found = Facts(host=autostrategy.probe(env={}, root=tmp_path).host, cluster=cluster)
    return gathering.gather(found, env={}, root=tmp_path, cluster=True)


def test_with_cluster_each_other_task_is_knocked_at_and_the_own_port_tried(listening, tmp_path):
    jobs = (
        Job(name="chief", addresses=(listening,)),
        Job(name="worker", addresses=("no-such-host.invalid:1", "localhost:1")),
    )
    own = Cluster(source="TF_CONFIG", jobs=jobs, task_type="chief", task_index=0)

    evidence = gathered(tmp_path, cluster=own)

    assert evidence.unanswered == {
        "no-such-host.invalid:1": "the host name does not resolve",
        "localhost:1": "connection refused",
    }
    assert "Is an earlier run still alive" in evidence.cannot_listen


def test_an_evaluator_has_no_port_of_its_own(listening, tmp_path):
    own = Cluster(
        source="TF_CONFIG",
        jobs=(Job(name="worker", addresses=(listening,)),),
        task_type="evaluator",
        task_index=0,
    )

    evidence = gathered(tmp_path, cluster=own)

    assert (evidence.unanswered, evidence.cannot_listen) == ({}, None)


# The command line


def command(*arguments, **env):
    dropped = ("TF_CONFIG", "KERAS_BACKEND")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=kept | env, timeout=300
    )


def test_doctor_on_this_machine_ends_with_the_status_of_its_findings():
    done = command("--json")
    found = json.loads(done.stdout)

    worst = {each["severity"] for each in found["findings"]}
    assert done.stderr == ""
    assert done.returncode == (2 if "blocked" in worst else 1 if worst else 0)
    assert {"autostrategy", "system", "tensorflow", "keras", "strategy"} <= set(found["machine"])


def test_doctor_prints_findings_and_the_block(tmp_path):
    done = command(KERAS_BACKEND="torch", AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI")

    assert done.returncode == 2
    assert done.stdout.startswith("1. blocked              Keras would run on torch")
    assert "   mend it with         export KERAS_BACKEND=tensorflow\n" in done.stdout
    assert "For a bug report:" in done.stdout
    assert "wJalr" not in done.stdout
    assert socket.gethostname() not in done.stdout.partition("For a bug report:")[2]


def test_doctor_of_a_cluster_names_who_does_not_answer():
    config = {
        "cluster": {"worker": ["no-such-host.invalid:2222", "other.invalid:2222"]},
        "task": {"type": "worker", "index": 0},
    }

    done = command("--cluster", TF_CONFIG=json.dumps(config))

    assert done.returncode == 2
    assert "1 task of the cluster cannot be reached from here." in done.stdout
    assert "getent hosts other.invalid" in done.stdout


def test_doctor_is_quick_and_imports_no_tensorflow_where_there_is_no_gpu():
    code = (
        "import sys; from autostrategy.diagnosis.doctor import doctor; "
        "doctor(env={}); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
