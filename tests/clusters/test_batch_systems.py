"""LSF, PBS and SGE, which give hosts and start nothing on them."""

import re

import pytest

from autostrategy.clusters import lsf, pbs, sge
from autostrategy.errors import ProbeError

PBS = {"PBS_JOBID": "1.pbs", "PBS_NODEFILE": "/nodes"}
SGE = {"JOB_ID": "1", "PE_HOSTFILE": "/nodes"}


@pytest.fixture
def nodes(tmp_path):
    """The root of a machine whose file /nodes has the text that is given."""

    def write(text):
        (tmp_path / "nodes").write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize("module", [lsf, pbs, sge])
@pytest.mark.parametrize(
    "env", [{}, {"LSB_JOBID": "1"}, {"PBS_JOBID": "1"}, {"PBS_NODEFILE": "/x"}, {"JOB_ID": "1"}]
)
def test_outside_a_job_with_hosts_there_is_nothing_to_say(module, env, tmp_path):
    assert module.allocation(env, tmp_path) is None
    assert module.from_env(env, None, tmp_path) is None
    assert module.notes(env, tmp_path) == ()


def test_one_host_is_not_worth_a_note(nodes):
    assert pbs.notes(PBS, nodes("n1\nn1\n")) == ()


def test_many_hosts_are_named_in_part(nodes):
    root = nodes("".join(f"n{number}\n" for number in range(10_000)))

    (note,) = pbs.notes(PBS, root)

    assert "PBS names 10000 hosts, with their slots: n0 (1), n1 (1), " in note
    assert "n7 (1) and 9992 more. This process has no rank among them" in note
    assert "mpirun -np 10000 --map-by ppr:1:node autostrategy run train.py." in note


def test_hosts_per_slot_serve_lsf_as_well_as_pairs():
    words = lsf.allocation({"LSB_JOBID": "1", "LSB_HOSTS": "a a b"})
    pairs = lsf.allocation({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 2 b 1"})

    assert words == pairs
    assert (words.hosts, words.slots) == (("a", "b"), (2, 1))


@pytest.mark.parametrize("text", ["a", "a 4 b", "4 a", "a -1", "a ²"])
def test_pairs_of_lsf_that_are_none_are_refused(text):
    env = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": text}

    with pytest.raises(ProbeError, match=r"LSB_MCPU_HOSTS must have pairs .*Received: .*unset LSB"):
        lsf.from_env(env)


def test_a_host_of_sge_with_two_queues_is_one_host(nodes):
    found = sge.allocation(SGE, nodes("n1 4 a.q x\nn2 1 a.q x\n\nn1 2 b.q x\n"))

    assert (found.hosts, found.slots) == (("n1", "n2"), (6, 1))


@pytest.mark.parametrize("line", ["n1", "n1 x all.q", "n1 ² all.q"])
def test_a_line_of_sge_without_slots_is_refused(line, nodes):
    message = rf"A line of PE_HOSTFILE must begin .*Received: '{re.escape(line)}'\. Compare"
    with pytest.raises(ProbeError, match=message):
        sge.from_env(SGE, root=nodes(line))


@pytest.mark.parametrize(("module", "env"), [(pbs, PBS), (sge, SGE)])
@pytest.mark.parametrize("path", ["/none", "/", "none", "/a\0b"])
def test_a_file_that_cannot_be_read_is_refused(module, env, path, tmp_path):
    variable = "PBS_NODEFILE" if module is pbs else "PE_HOSTFILE"

    with pytest.raises(ProbeError, match=rf"{variable} must be a file that can .*unset {variable}"):
        module.from_env(env | {variable: path}, root=tmp_path)
