"""Environments as launchers write them, and what must be made of each.

`cases.json` holds one environment a row, `slurm_captures.json` the variables
that each process of a real Slurm 22.05 cluster saw.
"""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autostrategy import prober
from autostrategy.clusters import CLUSTER_PROBES, lsf, mpi, pbs, sge, slurm
from autostrategy.errors import ProbeError
from autostrategy.facts import Cluster, Launch

HERE = Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text())
CAPTURES = {each["id"]: each for each in json.loads((HERE / "slurm_captures.json").read_text())}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_environment_gives_its_cluster(case, tmp_path):
    """`files` lie below the root that is probed, `allocation` is what a module says of hosts."""
    for path, text in case.get("files", {}).items():
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text(text)
    world = {"env": case["env"], "root": tmp_path}
    if "error" in case:
        with pytest.raises(ProbeError, match=re.escape(case["error"])):
            prober.probe(**world, hostname=case.get("hostname"))
        return

    facts = prober.probe(**world, hostname=case.get("hostname"))

    said = case.get("note", [])
    for note in [said] if isinstance(said, str) else said:
        assert note in " ".join(facts.notes)
    launch = case.get("launch")
    assert facts.launch == (launch and Launch(**launch | {"hosts": (*launch.get("hosts", ()),)}))
    assert_allocation(case.get("allocation"), world)
    cluster = facts.cluster
    if case["cluster"] is None:
        assert cluster is None
        return
    assert case["cluster"] == {job.name: list(job.addresses) for job in cluster.jobs}
    assert case["task"] == {"type": cluster.task_type, "index": cluster.task_index}
    for name in ("world_size", "rank", "is_chief", "source"):
        assert case.get(name, getattr(cluster, name)) == getattr(cluster, name)


def assert_allocation(expected, world):
    for name, module in {"lsf": lsf, "pbs": pbs, "sge": sge, "mpi": mpi}.items():
        found = module.allocation(**world)
        if expected is None or expected["module"] != name:
            assert found is None
        else:
            assert (expected["hosts"], expected["slots"]) == (list(found.hosts), list(found.slots))


# Ranks by node, as each step really ran. What is not here is no cluster.
RAN = {
    "salloc_srun": {"node01": [0, 1], "node02": [2]},
    "sbatch_export_none": {"node01": [0], "node02": [1]},
    "sbatch_signal": {"node01": [0], "node02": [1]},
    "sbatch_srun": {"node01": [0, 1], "node02": [2, 3]},
    "sbatch_srun_substep": {"node01": [0], "node02": [1]},
    "srun_N1_n2": {"node01": [0, 1]},
    "srun_N2_n2": {"node01": [0], "node02": [1]},
    "srun_N2_n4_cpus_per_task": {"node01": [0, 1], "node02": [2, 3]},
    "srun_N2_n4_two_per_node": {"node01": [0, 1], "node02": [2, 3]},
    "srun_N3_n5_uneven": {"node01": [0, 1], "node02": [2, 3], "node03": [4]},
    "srun_N3_n6_uneven": {"node01": [0, 1, 2, 3], "node02": [4], "node03": [5]},
    "srun_export_none": {"node01": [0], "node02": [1]},
    "srun_gpus_per_node": {"node01": [0], "node02": [1]},
    "srun_gpus_per_task": {"node01": [0, 1], "node02": [2, 3]},
    "srun_gres_gpu": {"node01": [0], "node02": [1]},
    "srun_hetjob": {"node01": [0], "node02": [1], "node03": [2]},
    "srun_mpi_pmi2": {"node01": [0], "node02": [1]},
    "srun_mpi_pmix": {"node01": [0], "node02": [1]},
}


@pytest.mark.parametrize("name", RAN)
def test_tasks_of_a_step_agree_on_the_hosts_slurm_used(name):
    processes = CAPTURES[name]["processes"]
    answers = [slurm.from_env(each["env"], each["hostname"]) for each in processes]
    clusters = [cluster for cluster in answers if cluster is not None]

    ranks_by_node = {}
    for rank, address in enumerate(clusters[0].workers):
        ranks_by_node.setdefault(address.partition(":")[0], []).append(rank)

    assert RAN[name] == ranks_by_node
    assert len({cluster.jobs for cluster in clusters}) == 1
    assert [cluster.rank for cluster in clusters] == list(range(len(clusters[0].workers)))
    assert len(set(clusters[0].workers)) == clusters[0].world_size


@pytest.mark.parametrize("name", sorted(set(CAPTURES) - set(RAN) - {"srun_N3_n6_arbitrary"}))
def test_what_is_no_step_of_several_tasks_is_no_slurm_cluster(name):
    """Batch scripts, shells of salloc, single tasks, and the ranks of mpirun."""
    for each in CAPTURES[name]["processes"]:
        assert slurm.from_env(each["env"], each["hostname"]) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sbatch_body", "the 4 tasks that the job asked for are not running"),
        ("salloc_shell", "Start the script with srun"),
        ("salloc_interactive_step", "not a task of srun"),
        ("sbatch_openmpi", r"^$"),
        ("sbatch_openmpi_np1", r"^$"),
        ("sbatch_body_nothing", r"^$"),
        ("srun_N1_n1", r"^$"),
        ("srun_N2_n2", r"^$"),
    ],
)
def test_tasks_that_do_not_run_are_noted(name, said):
    for each in CAPTURES[name]["processes"]:
        assert re.search(said, " ".join(slurm.notes(each["env"])))


@pytest.mark.parametrize(
    ("name", "source"), [("sbatch_openmpi", "Open MPI"), ("sbatch_mpich", "MPICH")]
)
def test_the_ranks_of_mpirun_in_a_slurm_job_are_one_launch(name, source, tmp_path):
    """They know the hosts of the job, whatever step their daemon is in."""
    launches = []
    for each in CAPTURES[name]["processes"]:
        facts = prober.probe(env=each["env"], root=tmp_path, hostname=each["hostname"])
        launches.append(facts.launch)
        assert facts.cluster is None
        assert "srun instead of mpirun" in facts.notes[0]

    assert {(launch.source, launch.world_size, launch.hosts) for launch in launches} == {
        (source, 4, ("node01", "node02"))
    }
    assert [launch.rank for launch in launches] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["srun_mpi_pmi2", "srun_mpi_pmix"])
def test_a_task_of_srun_with_mpi_variables_is_slurms(name, tmp_path):
    for each in CAPTURES[name]["processes"]:
        facts = prober.probe(env=each["env"], root=tmp_path, hostname=each["hostname"])

        assert facts.cluster.source == "Slurm"


def test_one_process_of_mpirun_in_a_slurm_job_is_alone(tmp_path):
    (process,) = CAPTURES["sbatch_openmpi_np1"]["processes"]

    facts = prober.probe(env=process["env"], root=tmp_path, hostname=process["hostname"])

    assert (facts.cluster, facts.launch, facts.notes) == (None, None, ())


def test_an_arbitrary_distribution_is_refused_with_the_way_out():
    for each in CAPTURES["srun_N3_n6_arbitrary"]["processes"]:
        with pytest.raises(ProbeError, match=r"Received: 'arbitrary'.*--distribution=block"):
            slurm.from_env(each["env"], each["hostname"])


# Values near the border of what launchers write, and far beyond it.
JSON_TEXT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["h:1", "h:2", "localhost:3", "[::1]:4", "worker", "chief"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cluster", "task", "type", "index", "worker", "ps", "chief", "0", "1"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
).map(json.dumps)
TF_CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.dictionaries(
            st.sampled_from(["worker", "ps", "chief", "evaluator", "master", "Worker"]),
            st.lists(st.sampled_from(["h:1", "h:2", "h:3", "h", "h:0", "", 5, None]), max_size=3)
            | st.dictionaries(st.sampled_from(["0", "1", "x"]), st.just("h:1")),
            max_size=3,
        ),
        "task": st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["worker", "ps", "chief", "evaluator", None, 1]),
                "index": st.sampled_from([0, 1, -1, 1.5, "1", "x", None, True, [], 10**30]),
            },
        ),
        "rpc_layer": st.sampled_from(["grpc", "grpc+verbs", None, 1, []]),
    },
).map(json.dumps)
SLURM_VALUE = (
    st.integers(-1, 6).map(str)
    | st.text(alphabet="n0123[]-,(x) ²", max_size=8)
    | st.sampled_from(["n[01-02]", "2(x2)", "1,1", "cyclic", "plane=2", "99999999999999", ""])
)
SLURM_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_PLANESIZE",
    "SLURM_LOCALID",
    "SLURMD_NODENAME",
    "SLURM_NTASKS",
    "AUTOSTRATEGY_PORT",
)
SLURM = st.fixed_dictionaries(
    {
        "SLURM_STEP_NODELIST": SLURM_VALUE,
        "SLURM_STEP_NUM_TASKS": SLURM_VALUE,
        "SLURM_PROCID": SLURM_VALUE,
    },
    optional=dict.fromkeys(SLURM_NAMES, SLURM_VALUE),
)
NUMBERS = ("0", "1", "2", "4")
HOSTS = ("n1", "tj-node-0-0.tj", "fd00::1", "[::1]")
ADDRESSES = ("n1:1", "tj-node-0-0.tj:29500", "[fd00::1]:1", "n1")
PATHS = ("/file", "/folder", "file", "/none")
# Variables of one launcher or platform, and the values that it would write.
WRITTEN = (
    {
        **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), NUMBERS),
        **dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), NUMBERS),
        "OMPI_COMM_WORLD_NODE_RANK": NUMBERS,
        "AZ_BATCH_MASTER_NODE": ADDRESSES,
        "SLURM_JOB_NODELIST": ("n[1-2]", "n[1"),
        "SLURM_JOB_ID": ("7",),
    },
    {
        **dict.fromkeys(("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"), NUMBERS),
        **dict.fromkeys(("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"), NUMBERS),
    },
    dict.fromkeys(("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), NUMBERS),
    dict.fromkeys(("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"), NUMBERS),
    {"PMI_ID": NUMBERS, "PMIX_RANK": NUMBERS, "I_MPI_HYDRA_BOOTSTRAP": ("ssh",)},
    dict.fromkeys(
        ("OMPI_MCA_orte_default_hostfile", "I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"), PATHS
    ),
    {"PBS_NODEFILE": PATHS, "PBS_JOBID": ("1.pbs",)},
    {"PE_HOSTFILE": PATHS},
    {
        **dict.fromkeys(("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"), NUMBERS),
        "JSM_NAMESPACE_SIZE": NUMBERS,
        "LSB_DJOB_RANKFILE": PATHS,
    },
    {"LSB_JOBID": ("1",), "LSB_MCPU_HOSTS": ("h1 2 h2 2", "h1"), "LSB_HOSTS": ("h1 h1 h2",)},
    {
        **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), NUMBERS),
        "MASTER_ADDR": HOSTS,
        "MASTER_PORT": NUMBERS,
        "TORCHELASTIC_RUN_ID": ("1",),
    },
    {
        "PET_NODE_RANK": NUMBERS,
        "PET_NNODES": (*NUMBERS, "1:4"),
        "PET_MASTER_ADDR": HOSTS,
        "PET_MASTER_PORT": NUMBERS,
        "WORLD_SIZE": NUMBERS,
    },
    {
        "JAX_PROCESS_ID": NUMBERS,
        "JAX_NUM_PROCESSES": NUMBERS,
        "JAX_COORDINATOR_ADDRESS": ADDRESSES,
    },
    {
        **dict.fromkeys(("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_PORT"), NUMBERS),
        "COORDINATOR_ADDRESS": HOSTS,
    },
    {
        **dict.fromkeys(("JOB_COMPLETION_INDEX", "AUTOSTRATEGY_WORKERS"), NUMBERS),
        **dict.fromkeys(("AUTOSTRATEGY_PODS_PER_JOB", "AUTOSTRATEGY_PORT"), NUMBERS),
        "HOSTNAME": ("train-1", "js-w-0-1", "pod"),
        "AUTOSTRATEGY_SERVICE": ("train",),
        "KUBERNETES_SERVICE_HOST": ("10.0.0.1",),
        "TPU_WORKER_HOSTNAMES": ("", "a,b"),
    },
    {
        "SM_HOSTS": ('["a", "b"]', '["a", "a"]', '["a b"]', "[1]"),
        "SM_CURRENT_HOST": ("a", "c"),
        "SM_DISTRIBUTION_INSTANCE_GROUPS": ('["x"]', '["y"]'),
        "SM_INSTANCE_GROUPS_DICT": ('{"x": {"hosts": ["a"]}, "y": {"hosts": null}}', '{"x": []}'),
    },
    {
        "CLUSTER_SPEC": (
            '{"cluster": {"workerpool0": ["h:1"]}, "task": {"type": "workerpool0", "index": 0}}',
            '{"cluster": {"workerpool0": "h:1"}, "task": {"type": ["workerpool0"], "index": 0}}',
            '{"cluster": {"workerpool0": {"0": "h:1"}}, "task": ["workerpool0"]}',
            '["workerpool0"]',
        ),
    },
    {"DATABRICKS_RUNTIME_VERSION": ("15.4",), "RAY_JOB_ID": ("01",)},
)
NASTY = (
    st.sampled_from(
        [
            "",
            " ",
            "-1",
            "0",
            "²",
            "٣",
            "1.5",
            "9" * 12,
            "9" * 5000,
            "[",
            "{}",
            "null",
            "n[1",
            "a\0b",
        ]
    )
    | JSON_TEXT
    | st.text(max_size=8)
)
NAMES = sorted({name for variables in WRITTEN for name in variables})
# What one of them writes, then a variable or two left out, spoilt or added.
LAUNCHED = st.sampled_from(WRITTEN).flatmap(
    lambda variables: st.builds(
        lambda own, changes: {
            name: value for name, value in (own | changes).items() if value is not None
        },
        st.fixed_dictionaries(
            {name: st.sampled_from(values) for name, values in variables.items()}
        ),
        st.just({})
        | st.dictionaries(st.sampled_from(sorted(variables)), st.none() | NASTY, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES), NASTY, max_size=2),
    )
)
ENVIRONMENT = (
    SLURM
    | st.fixed_dictionaries({"TF_CONFIG": TF_CONFIG | JSON_TEXT | st.text(max_size=30)})
    | LAUNCHED
    | st.builds(dict.__or__, SLURM, LAUNCHED)
)
FILE = (
    st.sampled_from(
        [
            b"",
            b"batch\nn1\nn1\nn2\n",
            b"n1 4 all.q UNDEFINED\nn2 4 all.q <NULL>\n",
            b"n1 slots=2\nn2:3\n# none\n",
            b'{"hosts": ["a", "b"], "current_host": "a"}',
            b'{"hosts": {"a": 1}, "current_host": ["a"]}',
            b"[1]",
            b"\xff\xfe\x00",
        ]
    )
    | st.binary(max_size=20)
    | JSON_TEXT.map(str.encode)
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder that stands for /, in which /file is what an example writes."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "folder").mkdir()
    configuration = folder / "opt/ml/input/config"
    configuration.mkdir(parents=True)
    (configuration / "resourceconfig.json").symlink_to(folder / "file")
    return folder


@settings(max_examples=600, deadline=None)
@given(env=ENVIRONMENT, file=FILE)
@example(env={"TF_CONFIG": "[" * 100_000}, file=b"")
@example(env={"TF_CONFIG": '{"task": ' + "9" * 5000 + "}"}, file=b"")
@example(env={"TF_CONFIG": '{"cluster": ' + "[" * 900 + "]" * 900 + "}"}, file=b"")
@example(
    env={"TF_CONFIG": '{"cluster": {"worker": ["h:1"]}, "task": {"index": Infinity}}'}, file=b""
)
@example(env={"SM_HOSTS": "[" * 100_000, "SM_CURRENT_HOST": "a"}, file=b"[" * 100_000)
@example(env={"SM_HOSTS": "9" * 5000, "SM_CURRENT_HOST": "a"}, file=b"9" * 5000)
@example(env={"CLUSTER_SPEC": '{"workerpool0": ' + "[" * 100_000}, file=b"")
@example(
    env={"CLUSTER_SPEC": '{"cluster": {"workerpool0": ' + "[" * 900 + "]" * 900 + "}}"}, file=b""
)
def test_no_environment_gives_anything_but_an_answer_or_a_probe_error(root, env, file):
    (root / "file").write_bytes(file)
    for probe in CLUSTER_PROBES:
        try:
            found = probe.from_env(env, "n01", root)
            notes = probe.notes(env, root)
        except ProbeError:
            continue

        assert found is None or isinstance(found, (Cluster, Launch))
        assert all(isinstance(note, str) for note in notes)
        if found is not None:
            assert found.rank is None or 0 <= found.rank < found.world_size
        if isinstance(found, Launch):
            assert found.world_size > 1
            assert found.local_rank is None or found.local_rank < found.world_size
