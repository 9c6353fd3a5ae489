import pytest

from autostrategy import facts_text
from autostrategy.facts import Launch


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Open MPI: this is rank 3 of 4"),
        ({"local_rank": 1}, "Open MPI: this is rank 3 of 4, 1 on this host"),
        (
            {
                "local_rank": 1,
                "local_size": 2,
                "meeting_point": "n1:29400",
                "hosts": ("n1", "n2"),
            },
            "Open MPI: this is rank 3 of 4, 1 of 2 on this host; they can meet at n1:29400; "
            "hosts n1 n2",
        ),
    ],
)
def test_a_launch_is_one_line_of_what_is_known(fields, text):
    assert text == facts_text.launch(Launch(source="Open MPI", rank=3, world_size=4, **fields))
