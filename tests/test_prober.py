import json
import os
import subprocess
import sys

import pytest

from autostrategy import prober
from autostrategy.errors import ProbeError
from autostrategy.facts import Facts

TWO_WORKERS = {
    "cluster": {"worker": ["h1:1", "h2:1"]},
    "task": {"type": "worker", "index": 1},
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[01-02]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
}


@pytest.fixture
def root(tmp_path):
    """A folder that stands for / of a machine with two cores and one TPU chip."""
    for path, text in {
        "proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n",
        "proc/meminfo": "MemTotal: 1024 kB\nMemAvailable: 512 kB\n",
        "proc/sys/kernel/hostname": "elsewhere\n",
        "sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0\n",
        "sys/bus/pci/devices/0000:00:04.0/device": "0x0063\n",
        "dev/vfio/0": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_another_root_and_environment_are_another_world(root):
    facts = prober.probe(env={"CUDA_VISIBLE_DEVICES": "0"}, root=root)

    assert facts.host.name == "elsewhere"
    assert facts.host.logical_cores == 2
    assert facts.host.memory_bytes == 1024 * 1024
    assert [device.kind for device in facts.host.devices] == ["tpu"]
    assert facts.tpu.address == "local"
    assert facts.visible_devices == "0"
    assert facts.cluster is None
    assert facts.notes == ()


def test_a_root_may_be_text_and_a_host_name_may_be_given(root):
    facts = prober.probe(env={}, root=str(root), hostname="n1")

    assert facts.host.name == "n1"


def test_an_empty_root_is_a_host_of_unknown_name(tmp_path):
    assert prober.probe(env={}, root=tmp_path).host.name == "unknown"


def test_tf_config_is_believed_before_slurm(root):
    env = {"TF_CONFIG": json.dumps(TWO_WORKERS), **SLURM}

    assert prober.probe(env=env, root=root).cluster.source == "TF_CONFIG"


def test_an_empty_tf_config_is_noted_and_slurm_answers(root):
    facts = prober.probe(env={"TF_CONFIG": "", **SLURM}, root=root)

    assert facts.cluster.source == "Slurm"
    assert facts.cluster.workers[1].startswith("n02:")
    assert facts.notes == ("TF_CONFIG is set but empty; it is taken as unset.",)


def test_notes_of_probes_that_were_not_needed_are_not_told(root):
    batch_script = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}

    assert "srun" in prober.probe(env=batch_script, root=root).notes[0]
    env = {"TF_CONFIG": json.dumps(TWO_WORKERS), **batch_script}
    assert prober.probe(env=env, root=root).notes == ()


def test_processes_that_know_only_their_ranks_are_a_launch_with_a_warning(root):
    env = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}

    facts = prober.probe(env=env, root=root)

    assert facts.cluster is None
    assert (facts.launch.source, facts.launch.rank, facts.launch.world_size) == ("Open MPI", 3, 4)
    assert facts.notes == (
        "Open MPI started 4 processes, of which this is rank 3. They know no addresses of each "
        "other: each would train on its own until their addresses are exchanged, as "
        "autostrategy.fit and 'autostrategy run' do.",
    )
    assert Facts.from_json(facts.to_json()) == facts


def test_the_innermost_launcher_is_believed(root):
    """mpirun in a step of srun starts torchrun, which starts two processes."""
    env = {
        **SLURM,
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RUN_ID": "1",
    }

    assert prober.probe(env=env, root=root).launch.source == "torchrun"
    del env["TORCHELASTIC_RUN_ID"]
    assert prober.probe(env=env, root=root).launch.source == "Open MPI"
    del env["OMPI_COMM_WORLD_RANK"]
    assert prober.probe(env=env, root=root).cluster.source == "Slurm"


def test_files_that_variables_name_are_read_below_the_root(root):
    (root / "nodes").write_text("n1\nn2\n")

    (note,) = prober.probe(env={"PBS_JOBID": "1", "PBS_NODEFILE": "/nodes"}, root=root).notes

    assert note.startswith("PBS names 2 hosts, with their slots: n1 (1), n2 (1).")


def test_an_environment_that_contradicts_itself_is_an_error(root):
    with pytest.raises(ProbeError, match="TF_CONFIG must be JSON"):
        prober.probe(env={"TF_CONFIG": "{"}, root=root)


def test_this_machine_is_probed_from_os_environ(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(TWO_WORKERS))

    facts = prober.probe()

    assert facts.cluster.rank == 1
    assert facts.host.logical_cores == os.cpu_count()
    assert Facts.from_json(facts.to_json()) == facts


def test_probing_leaves_the_environment_alone():
    before = dict(os.environ)

    prober.probe()

    assert before == dict(os.environ)


def test_probing_imports_no_framework():
    code = (
        "import sys; from autostrategy import prober; prober.probe(env={}); "
        "sys.exit(bool({'tensorflow', 'keras', 'numpy', 'psutil'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
