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
ENVIRONMENT = SLURM | st.fixed_dictionaries(
    {"TF_CONFIG": TF_CONFIG | JSON_TEXT | st.text(max_size=30)}
)


@settings(max_examples=300, deadline=None)
@given(env=ENVIRONMENT)
@example(env={"TF_CONFIG": "[" * 100_000})
@example(env={"TF_CONFIG": '{"task": ' + "9" * 5000 + "}"})
@example(env={"TF_CONFIG": '{"cluster": ' + "[" * 900 + "]" * 900 + "}"})
@example(env={"TF_CONFIG": '{"cluster": {"worker": ["h:1"]}, "task": {"index": Infinity}}'})
def test_no_environment_gives_anything_but_a_cluster_none_or_a_probe_error(env):
    for probe in CLUSTER_PROBES:
        try:
            cluster = probe.from_env(env, "n01")
            notes = probe.notes(env)
        except ProbeError:
            continue

        assert cluster is None or isinstance(cluster, Cluster)
        assert all(isinstance(note, str) for note in notes)
        if cluster is not None:
            assert cluster.rank is None or 0 <= cluster.rank < cluster.world_size
