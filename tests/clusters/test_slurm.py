import pytest

from autostrategy.clusters import slurm
from autostrategy.errors import ProbeError


def step(rank=0, *, nodes="n[1-2]", tasks=2, per_node=None, **others):
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_PROCID": str(rank),
        **({"SLURM_STEP_TASKS_PER_NODE": per_node} if per_node else {}),
        **others,
    }


def nodes(cluster):
    return [address.partition(":")[0] for address in cluster.workers]


def test_a_step_of_two_tasks_is_two_workers():
    cluster = slurm.from_env(step(1))

    assert cluster.source == "Slurm"
    assert cluster.workers == ("n1:12112", "n2:12112")
    assert (cluster.rank, cluster.world_size, cluster.is_chief) == (1, 2, False)


@pytest.mark.parametrize(
    ("distribution", "hosts"),
    [
        ({}, ["n1", "n1", "n1", "n2", "n2", "n3"]),
        ({"SLURM_DISTRIBUTION": "block"}, ["n1", "n1", "n1", "n2", "n2", "n3"]),
        ({"SLURM_DISTRIBUTION": "*:block"}, ["n1", "n1", "n1", "n2", "n2", "n3"]),
        ({"SLURM_DISTRIBUTION": "Block,NoPack"}, ["n1", "n1", "n1", "n2", "n2", "n3"]),
        ({"SLURM_DISTRIBUTION": "cyclic"}, ["n1", "n2", "n3", "n1", "n2", "n1"]),
        ({"SLURM_DISTRIBUTION": "cyclic:cyclic"}, ["n1", "n2", "n3", "n1", "n2", "n1"]),
        (
            {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "2"},
            ["n1", "n1", "n2", "n2", "n3", "n1"],
        ),
    ],
)
def test_ranks_are_dealt_to_nodes_as_the_distribution_says(distribution, hosts):
    cluster = slurm.from_env(step(0, nodes="n[1-3]", tasks=6, per_node="3,2,1", **distribution))

    assert hosts == nodes(cluster)
    assert len(set(cluster.workers)) == 6


@pytest.mark.parametrize("step_id", ["4294967290", "4294967291", "4294967292", "4294967293"])
def test_a_pseudo_step_is_no_cluster(step_id):
    assert slurm.from_env(step(SLURM_STEP_ID=step_id)) is None


@pytest.mark.parametrize("mark", ["OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID"])
def test_below_mpirun_slurm_does_not_answer(mark):
    environment = step(**{mark: "0"})

    assert slurm.from_env(environment) is None
    assert slurm.notes(environment) == ()


def test_outside_slurm_there_is_nothing_to_say():
    assert slurm.from_env({"SLURM_CONF": "/etc/slurm/slurm.conf"}) is None
    assert slurm.notes({"SLURM_CONF": "/etc/slurm/slurm.conf"}) == ()


def test_steps_and_neighbouring_jobs_get_ports_of_their_own():
    ports = {
        slurm.from_env(step(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(number))).workers[0]
        for job in range(4711, 4741)
        for number in range(4)
    }

    assert len(ports) == 30 * 4
    assert all(12000 <= int(address.partition(":")[2]) < 30000 for address in ports)


def test_the_first_port_can_be_given():
    cluster = slurm.from_env(step(per_node="2", nodes="n1", AUTOSTRATEGY_PORT="8888"))

    assert cluster.workers == ("n1:8888", "n1:8889")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (step(SLURM_STEP_NUM_TASKS="two"), "SLURM_STEP_NUM_TASKS must be a whole number from 0"),
        (step(tasks=0), "SLURM_STEP_NUM_TASKS must be from 1 to 1048576. Received: 0"),
        (step(tasks=10**9), "SLURM_STEP_NUM_TASKS must be from 1 to 1048576"),
        (step(SLURM_PROCID="-1"), "SLURM_PROCID must be a whole number from 0. Received: '-1'"),
        (step(3, tasks=3), "SLURM_PROCID must be below SLURM_STEP_NUM_TASKS, which is 3"),
        (
            step(tasks=3),
            "SLURM_STEP_TASKS_PER_NODE must be set for 3 tasks on 2 nodes",
        ),
        (step(per_node="2x"), r"must have the form '2\(x3\),1'"),
        (step(per_node="1"), "must count the tasks of each of the 2 nodes.*which is 1 nodes"),
        (step(per_node="1(x9999999)"), "must count the tasks of each of the 2 nodes"),
        (step(per_node="2(x2)"), "must add up to SLURM_STEP_NUM_TASKS, which is 2.*which is 4"),
        (step(SLURM_DISTRIBUTION="arbitrary"), "must be block, cyclic, or plane .*'arbitrary'"),
        (step(SLURM_DISTRIBUTION="plane"), "plane with SLURM_DIST_PLANESIZE"),
        (step(SLURM_STEP_ID="x"), "SLURM_STEP_ID must be a whole number"),
        (step(SLURM_JOB_ID=""), "SLURM_JOB_ID must be a whole number"),
        (step(AUTOSTRATEGY_PORT="x"), "AUTOSTRATEGY_PORT must be a whole number"),
        (step(AUTOSTRATEGY_PORT="65536"), "from 1 to 65535, .*Received: 65536. Set AUTOSTRATEGY_P"),
        (step(nodes="n[1-2"), "close each"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(environment, message):
    with pytest.raises(ProbeError, match=message):
        slurm.from_env(environment)


@pytest.mark.parametrize(
    ("said", "hostname"),
    [
        ({"SLURMD_NODENAME": "n2"}, None),
        ({"SLURM_LOCALID": "1"}, None),
        ({"SLURM_GTIDS": "0,1"}, None),
        ({}, "n2.example.org"),
    ],
)
def test_a_task_that_is_not_where_the_list_says_is_refused(said, hostname):
    with pytest.raises(ProbeError, match=r"Rank 0 must be task 0 of node n1, beside ranks 0, by"):
        slurm.from_env(step(0, **said), hostname)


@pytest.mark.parametrize("hostname", ["n1", "n1.example.org", "some-other-name", None])
def test_a_host_name_that_is_no_node_name_proves_nothing(hostname):
    assert slurm.from_env(step(0), hostname) is not None


def test_the_name_that_slurmd_gives_outweighs_the_host_name():
    """Several slurmd of one machine share its host name."""
    assert slurm.from_env(step(0, SLURMD_NODENAME="n1"), "n2") is not None
