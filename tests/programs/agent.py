"""An unmodified torchelastic agent over `victim.py`: prints whom it blames each turn.

Arguments: log directory, the culprit's rank, its fault, how many turns.
"""

import json
import os
import sys
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing import (  # noqa: TID253
    DefaultLogsSpecs,
    Std,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import (  # noqa: TID253
    ChildFailedError,
)

log_dir, culprit, fault, turns = sys.argv[1:]
victim = str(Path(__file__).with_name("victim.py"))
for turn in range(int(turns)):
    turn_dir = Path(log_dir, str(turn))
    turn_dir.mkdir()
    common = {**os.environ, "RENDEZVOUS": uuid.uuid4().hex}
    ranks = range(2)
    context = start_processes(
        name="victim.py",
        entrypoint=sys.executable,
        args=dict.fromkeys(ranks, (victim, culprit, fault)),
        envs={
            rank: {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            for rank in ranks
        },
        logs_specs=DefaultLogsSpecs(log_dir=str(turn_dir), redirects=Std.ALL),
    )
    result = context.wait(timeout=60, period=0.1)
    failures = result.failures
    rank, failure = ChildFailedError("victim.py", failures).get_first_failure()
    print(
        json.dumps(
            {
                "failed": sorted(failures),
                "blamed": rank,
                "exitcode": failure.exitcode,
                "timestamps": [failures[rank].timestamp for rank in failures],
            }
        )
    )
