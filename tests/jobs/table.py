"""The table of the labelled jobs."""

import table_alike
import table_alone
import table_ended
import table_several
import table_waiting
from job import Job

JOBS: tuple[Job, ...] = (
    *table_alone.JOBS,
    *table_alike.JOBS,
    *table_ended.JOBS,
    *table_waiting.JOBS,
    *table_several.JOBS,
)
