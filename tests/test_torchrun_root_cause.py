"""torchrun's own root cause is right though a victim fails in the same second."""

import json
from pathlib import Path

import pytest

from conftest import PROGRAMS, Run

TURNS = 6


@pytest.mark.parametrize("fault", ["segfault", "exception"])
@pytest.mark.parametrize("culprit", [0, 1])
def test_an_unmodified_agent_blames_the_culprit(
    fault: str, culprit: int, run: Run, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    ended = run(
        PROGRAMS / "agent.py",
        *(str(logs), str(culprit), fault, str(TURNS)),
        env={"TORCHELASTIC_ERROR_FILE": None},
    )
    assert ended.status == 0, ended.stderr
    turns = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(turns) == TURNS
    for turn in turns:
        assert turn["failed"] == [0, 1], "the victim must have failed too"
        assert turn["blamed"] == culprit
        # The agent may end a Python process that is on its way out already.
        assert turn["exitcode"] in ((-11,) if fault == "segfault" else (1, -15))
