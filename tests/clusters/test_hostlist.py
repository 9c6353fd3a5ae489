import pytest
from hypothesis import given
from hypothesis import strategies as st

from autostrategy.clusters import hostlist
from autostrategy.errors import ProbeError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ("n1",)),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("c[098-101]", ("c098", "c099", "c100", "c101")),
        ("node[01,03]", ("node01", "node03")),
        ("a[1-2]-ib,b", ("a1-ib", "a2-ib", "b")),
        ("gpu-a[1-2]b[01-02]", ("gpu-a1b01", "gpu-a1b02", "gpu-a2b01", "gpu-a2b02")),
        ("n[01-03,7],gpu5", ("n01", "n02", "n03", "n7", "gpu5")),
        ("a b\tc", ("a", "b", "c")),
        ("a,,b,", ("a", "b")),
        ("[1-2]", ("1", "2")),
        ("n.example.org", ("n.example.org",)),
    ],
)
def test_expand_keeps_order_zero_padding_and_suffix(text, hosts):
    assert hosts == hostlist.expand(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must name at least one host\. Received: '' in ''"),
        (" , ", "must name at least one host"),
        ("cn[1-2", r"must close each '\[' with a '\]'\. Received: 'cn\[1-2'"),
        ("cn1-2]", r"must open each '\]' with a '\['"),
        ("n[3-1]", r"must have ranges that rise\. Received: '3-1' in 'n\[3-1\]'"),
        ("n[a-c]", "must have only numbers and ranges"),
        ("n[1x2]", "must have only numbers and ranges"),
        ("n[]", "must have only numbers and ranges"),
        ("n[1,]", "must have only numbers and ranges"),
        ("n[1-]", "must have only numbers and ranges"),
        ("n[-1]", "must have only numbers and ranges"),
        ("n[[1]]", "must have only numbers and ranges"),
        ("n[²]", "must have only numbers and ranges"),
        ("n[1-99999999999999999999]", "must have only numbers and ranges"),
        ("n[1-65537]", "must name at most 65536 hosts"),
        ("n[1-300][1-300]", "must name at most 65536 hosts"),
        ("n[1-999999999999]", r"at most 65536 hosts.*scontrol show hostnames"),
        ("[" * 1000, r"Received: '\[+\.\.\.' in"),
    ],
)
def test_expand_refuses_what_slurm_refuses_and_quotes_it(text, message):
    with pytest.raises(ProbeError, match=message):
        hostlist.expand(text)


@given(st.text(alphabet="an019[]-, x", max_size=40))
def test_expand_gives_hosts_or_a_probe_error(text):
    try:
        hosts = hostlist.expand(text)
    except ProbeError:
        return

    assert hosts
    assert not set("".join(hosts)) & set("[], ")


def test_expand_takes_time_in_proportion_to_the_list():
    """A list of the largest allowed length, one name at a time, is no burden."""
    text = ",".join(f"n[{number}]" for number in range(hostlist.MAXIMUM_HOSTS))

    assert len(hostlist.expand(text)) == hostlist.MAXIMUM_HOSTS
