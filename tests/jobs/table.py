"""The table of the labelled jobs."""

import table_alike
import table_alone
import table_caught
import table_ended
import table_gone
import table_leaving
import table_several
import table_stuck
import table_waiting
from job import Job

JOBS: tuple[Job, ...] = (
    *table_alone.JOBS,
    *table_alike.JOBS,
    *table_ended.JOBS,
    *table_waiting.JOBS,
    *table_several.JOBS,
    *table_leaving.JOBS,
    *table_caught.JOBS,
    *table_stuck.JOBS,
    *table_gone.JOBS,
)
