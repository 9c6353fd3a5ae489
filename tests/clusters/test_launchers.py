"""Launchers that tell ranks: MPI, torchrun, jsrun, and variables in their manner."""

import re

import pytest

from autostrategy.clusters import azure_ml, jax_variables, jsrun, mpi, pytorch_variables, torchrun
from autostrategy.errors import ProbeError
from autostrategy.facts import Launch

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "job7",
}
BY_HAND = {name: value for name, value in TORCHRUN.items() if "TORCHELASTIC" not in name}
TRAINJOB = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "auto",
    "PET_MASTER_ADDR": "tj-node-0-0.tj",
    "PET_MASTER_PORT": "29500",
}
JAX = {
    "JAX_PROCESS_ID": "1",
    "JAX_NUM_PROCESSES": "2",
    "JAX_COORDINATOR_ADDRESS": "n1:29500",
}


def open_mpi(rank, size, **others):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), **others}


@pytest.mark.parametrize(
    "env",
    [
        {},
        open_mpi(0, 1),
        {"OMPI_UNIVERSE_SIZE": "64"},
        {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"},
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "1"},
        {"JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_SIZE": "1", "PMIX_RANK": "0"},
    ],
)
def test_one_process_is_no_launch_of_mpi(env):
    assert mpi.from_env(env) is None
    assert mpi.notes(env) == ()


@pytest.mark.parametrize(
    ("local", "source"),
    [
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "MPICH"),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "I_MPI_ROOT": "/opt"}, "Intel MPI"),
        ({"PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}, "Cray PALS"),
    ],
)
def test_pmi_is_known_by_its_local_variables(local, source):
    launch = mpi.from_env({"PMI_RANK": "3", "PMI_SIZE": "4", **local})

    assert launch == Launch(source=source, rank=3, world_size=4, local_rank=1, local_size=2)


def test_pmi_of_an_outer_launcher_that_agrees_is_not_noted():
    assert mpi.notes(open_mpi(1, 4, PMI_RANK="1", PMI_SIZE="4")) == ()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (open_mpi(4, 4), "OMPI_COMM_WORLD_RANK must be below OMPI_COMM_WORLD_SIZE, which is 4. Re"),
        (open_mpi(0, 0), "OMPI_COMM_WORLD_SIZE must be from 1. Received: 0. Start all processes"),
        (open_mpi("²", 4), "OMPI_COMM_WORLD_RANK must be a whole number from 0. Received: '²'"),
        (
            open_mpi(0, 2, OMPI_COMM_WORLD_LOCAL_RANK="2"),
            "OMPI_COMM_WORLD_LOCAL_RANK must be below OMPI_COMM_WORLD_SIZE, which is 2",
        ),
        (
            open_mpi(0, 4, OMPI_COMM_WORLD_LOCAL_RANK="2", OMPI_COMM_WORLD_LOCAL_SIZE="2"),
            "OMPI_COMM_WORLD_LOCAL_RANK must be below OMPI_COMM_WORLD_LOCAL_SIZE, which is 2",
        ),
        (
            open_mpi(0, 4, OMPI_COMM_WORLD_LOCAL_SIZE="5"),
            "OMPI_COMM_WORLD_LOCAL_SIZE must be from 1 to 4. Received: 5",
        ),
        ({"PMI_RANK": "1"}, "must come with the number of ranks. Received: PMI_RANK='1'"),
        ({"PMIX_RANK": "0"}, "Received: PMIX_RANK='0', and no variable with a size"),
        (
            open_mpi(0, 2, SLURM_JOB_NODELIST="n[1"),
            "A Slurm node list must close each '['",
        ),
    ],
)
def test_ranks_of_mpi_that_contradict_themselves_are_refused(env, message):
    with pytest.raises(ProbeError, match=re.escape(message)):
        mpi.from_env(env)


@pytest.mark.parametrize(
    ("name", "text", "hosts", "slots"),
    [
        ("OMPI_MCA_orte_default_hostfile", "a slots=2 max_slots=3\n#c\n\nb\n", "ab", (2, 1)),
        ("HYDRA_HOST_FILE", "a:2\nb:3\n", "ab", (2, 3)),
        ("I_MPI_HYDRA_HOST_FILE", "a\na\nb\n", "ab", (2, 1)),
    ],
)
def test_a_launcher_knows_the_hosts_of_its_hostfile(name, text, hosts, slots, tmp_path):
    (tmp_path / "hostfile").write_text(text)

    found = mpi.allocation({name: "/hostfile"}, tmp_path)

    assert (found.hosts, found.slots) == (tuple(hosts), slots)
    assert ("Open MPI 5" in found.how_to_start) == name.startswith("OMPI")


def test_a_hostfile_that_is_not_there_is_nothing(tmp_path):
    assert mpi.notes({"HYDRA_HOST_FILE": "/hostfile"}, tmp_path) == ()


@pytest.mark.parametrize("env", [{}, {"AZ_BATCH_MASTER_NODE": "n:1"}, open_mpi(0, 2)])
def test_azure_ml_is_its_master_and_mpi_together(env):
    assert azure_ml.from_env(env) is None
    assert azure_ml.notes(env) == ()


@pytest.mark.parametrize("address", ["10.0.0.4", "n:0", "n:65536", "n:x", ":²", "n:999999"])
def test_a_meeting_point_without_a_port_is_refused(address):
    with pytest.raises(ProbeError, match=r"AZ_BATCH_MASTER_NODE must be host:port with a port"):
        azure_ml.from_env(open_mpi(0, 2, AZ_BATCH_MASTER_NODE=address))


@pytest.mark.parametrize("address", [":1", "a b:1", "http://n:1", "fd00::xyz:1"])
def test_a_meeting_point_whose_host_is_no_name_is_refused(address):
    with pytest.raises(ProbeError, match=r"AZ_BATCH_MASTER_NODE must name a host by letters"):
        azure_ml.from_env(open_mpi(0, 2, AZ_BATCH_MASTER_NODE=address))


@pytest.mark.parametrize("host", ["fd00::1", "[fd00::1]"])
def test_an_ipv6_address_comes_in_brackets(host):
    assert torchrun.from_env(TORCHRUN | {"MASTER_ADDR": host}).meeting_point == "[fd00::1]:29400"


def test_only_the_child_of_torchrun_is_torchruns():
    assert torchrun.from_env(BY_HAND) is None
    assert torchrun.from_env(TORCHRUN) == pytorch_variables.from_env(BY_HAND)
    assert torchrun.from_env(TORCHRUN).source == "torchrun"


@pytest.mark.parametrize("read", [torchrun.launch, pytorch_variables.from_env])
@pytest.mark.parametrize("env", [{"RANK": "0", "WORLD_SIZE": "1"}, {**BY_HAND, "WORLD_SIZE": "1"}])
def test_a_world_of_one_needs_nothing(read, env):
    assert read({**env, "RANK": "0"}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MASTER_PORT": "0"}, "MASTER_PORT must be from 1 to 65535. Received: 0. It belongs to M"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT must be a whole number from 1. Received: 'x'"),
        ({"MASTER_ADDR": ""}, "must be set together. Received no MASTER_ADDR. Start the script"),
        ({"RANK": "", "MASTER_PORT": ""}, "Received no RANK and no MASTER_PORT"),
        ({"RANK": "-1"}, "RANK must be a whole number from 0"),
    ],
)
def test_variables_of_torchrun_that_contradict_each_other_are_refused(changes, message):
    for read, env in ((torchrun.from_env, TORCHRUN), (pytorch_variables.from_env, BY_HAND)):
        with pytest.raises(ProbeError, match=re.escape(message)):
            read(env | changes)


def test_the_children_of_torchrun_in_a_trainjob_are_not_pods():
    assert isinstance(pytorch_variables.from_env(BY_HAND | TRAINJOB), Launch)


def test_pods_of_a_trainjob_may_be_given_another_port():
    cluster = pytorch_variables.from_env(TRAINJOB | {"AUTOSTRATEGY_PORT": "7"})

    assert cluster.workers == ("tj-node-0-0.tj:7", "tj-node-0-1.tj:7")
    assert cluster.rank == 1


def test_a_trainjob_of_one_pod_is_a_cluster_of_one():
    """The pod has JOB_COMPLETION_INDEX too, and has to be answered before that is asked for."""
    one = {"PET_NNODES": "1", "PET_NODE_RANK": "0"}

    assert pytorch_variables.from_env(TRAINJOB | one).workers == ("tj-node-0-0.tj:29500",)


@pytest.mark.parametrize(
    ("first", "meeting_point"),
    [("tj-node-0-0.other", "tj-node-0-0.other:29500"), ("n1", "n1:29500"), ("", None)],
)
def test_pods_of_other_names_are_a_launch(first, meeting_point):
    launch = pytorch_variables.from_env(TRAINJOB | {"PET_MASTER_ADDR": first})

    assert launch == Launch(source="PyTorchJob", rank=1, world_size=2, meeting_point=meeting_point)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PET_NNODES": "1:4"}, "PET_NNODES must be a whole number from 1. Received: '1:4'. PET_*"),
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK must be below PET_NNODES, which is 2"),
        ({"PET_NNODES": "99999999"}, "PET_NNODES must be from 1 to 65536. Received: 99999999"),
        ({"AUTOSTRATEGY_PORT": "65536"}, "first port of a host must be from 1 to 65535, with room"),
        ({"AUTOSTRATEGY_PORT": "0"}, "AUTOSTRATEGY_PORT must be from 1. Received: 0. Set AUTOSTR"),
    ],
)
def test_pods_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ProbeError, match=re.escape(message)):
        pytorch_variables.from_env(TRAINJOB | changes)


def test_a_size_of_processes_is_noted_only_where_it_differs_from_the_pods():
    assert pytorch_variables.notes(TRAINJOB | {"WORLD_SIZE": "2"}) == ()
    assert (
        "One process in each of the 2 pods"
        in (pytorch_variables.notes(TRAINJOB | {"WORLD_SIZE": "8"})[0])
    )


def test_jax_processes_elsewhere_are_a_launch():
    assert jax_variables.from_env(JAX) == Launch(
        source="JAX", rank=1, world_size=2, meeting_point="n1:29500"
    )
    assert jax_variables.notes(JAX) == ()


def test_a_jaxjob_is_a_launch_when_all_its_plain_words_are_there():
    env = {
        "PROCESS_ID": "1",
        "NUM_PROCESSES": "2",
        "COORDINATOR_ADDRESS": "jj-worker-0",
        "COORDINATOR_PORT": "6666",
    }

    assert jax_variables.from_env(env) == Launch(
        source="JAXJob", rank=1, world_size=2, meeting_point="jj-worker-0:6666"
    )
    for name in env:
        assert jax_variables.from_env({key: env[key] for key in env if key != name}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID must be below JAX_NUM_PROCESSES, which is 2"),
        ({"JAX_COORDINATOR_ADDRESS": "n1"}, "JAX_COORDINATOR_ADDRESS must be host:port"),
    ],
)
def test_jax_variables_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ProbeError, match=message):
        jax_variables.from_env(JAX | changes)


def test_tasks_of_jsrun_without_a_rank_file_know_no_hosts(tmp_path):
    env = {
        "JSM_NAMESPACE_RANK": "1",
        "JSM_NAMESPACE_SIZE": "2",
        "LSB_DJOB_RANKFILE": "/none",
    }

    assert jsrun.from_env(env, root=tmp_path) == Launch(source="jsrun", rank=1, world_size=2)


def test_a_task_of_jsrun_without_a_size_is_refused():
    with pytest.raises(ProbeError, match=r"JSM_NAMESPACE_SIZE must be .*Start the script with jsr"):
        jsrun.from_env({"JSM_NAMESPACE_RANK": "1"})
