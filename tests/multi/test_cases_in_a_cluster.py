"""The cases of public bug reports on two workers, and on parameter servers with one worker.

One cluster runs them all in a row, since starting one takes longer than a case.
"""

from pathlib import Path

import pytest
import workers

FOLDER = Path(__file__).parent.parent / "cases"
# Of case 17 each process would see one replica's mask; case 22 counts on four
# replicas, and under parameter servers each step of case 18 has a whole batch.
LEFT_OUT = {
    "multi_worker": ("case_17", "case_22"),
    "parameter_server": ("case_17", "case_18", "case_22"),
}
JOBS = {"multi_worker": {"worker": 2}, "parameter_server": {"chief": 1, "worker": 1, "ps": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOBS)
def test_cases_end_without_an_error(kind, tmp_path):
    cases = [
        path.stem
        for path in sorted(FOLDER.glob("case_*.py"))
        if not path.stem.startswith(LEFT_OUT[kind])
    ]

    ended = workers.run(
        f"""
import runpy, sys
import autostrategy
sys.path.insert(0, {str(FOLDER)!r})
autostrategy.build(autostrategy.plan(autostrategy.probe()))
import keras
done = []
for case in {cases}:
    os.makedirs(case, exist_ok=True)
    os.chdir(case)
    keras.utils.clear_session(free_memory=False)
    runpy.run_path(os.path.join({str(FOLDER)!r}, case + ".py"))
    os.chdir("..")
    done.append(case)
tell(done)
""",
        JOBS[kind],
        tmp_path=tmp_path,
        timeout=540,
    )

    tasks = [each for each in ended if each.task[0] in ("chief", "worker")]
    if kind == "parameter_server":
        tasks = [workers.chief_of(ended)]
    assert workers.told(tasks) == [cases] * len(tasks)
