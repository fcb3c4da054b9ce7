"""The verdict stays as right as it was: on each tuning job, on so many held ones."""

import pytest

from labelled import BASELINES, Case, cases, judge
from variants import clocks, orders

CASES = cases()
TUNING = [case for case in CASES if not case.held]
HELD = [case for case in CASES if case.held]

# How many held cases were wrong when last counted: in rank, host and category. Which
# ones is nobody's business here, so that rules are not bent to fit them.
HELD_MISSES = (5, 6, 14)
HELD_WRONG_AT_HIGH = 1


# Tuning cases that are not judged right yet; what is said of them is not said for sure.
STILL_WRONG = {
    "absent_agents",
    "agent_loses_store_terminal_wrapped",
    "d2_loader_worker_double_free",
    "flash_attn_symbol_two_ranks_torn",
    "gloo_job_aborts_for_gpu_memory",
    "interrupted_while_waiting_for_first_rank",
    "loader_os_error_log_broken_off",
    "loader_workers_bus_error_in_container",
    "ray_broadcast_over_broken_ib",
    "rendezvous_host_name_unknown",
    "sdxl_ecc_on_one_of_two",
    "shape_tee",
    "srun_each_task_sees_one_device",
    "store_counts_workers_of_an_older_run",
    "store_left_with_another_job",
    "store_resets_who_joins",
    "timm_device_assert_behind_nccl_abort",
}


@pytest.mark.parametrize("case", TUNING, ids=lambda case: case.name)
def test_a_tuning_job_is_judged_right(case: Case) -> None:
    verdict = judge(case.files)
    score = case.score(verdict)
    assert not score.wrong_at_high, verdict
    assert score.right == (case.name not in STILL_WRONG), verdict


def test_the_held_third_is_judged_as_well_as_before() -> None:
    scores = [case.score(judge(case.files)) for case in HELD]
    assert len(scores) >= 20
    # Which ones is not said.
    assert sum(score.wrong_at_high for score in scores) <= HELD_WRONG_AT_HIGH
    wrong = (
        sum(not score.rank for score in scores),
        sum(score.host is False for score in scores),
        sum(not score.category for score in scores),
    )
    assert all(now <= then for now, then in zip(wrong, HELD_MISSES, strict=True)), wrong


@pytest.mark.parametrize("case", TUNING, ids=lambda case: case.name)
def test_neither_order_nor_clocks_change_a_verdict(case: Case) -> None:
    verdict = judge(case.files)
    for title, files in orders(case.name, case.files):
        assert judge(files) == verdict, title
    for title, files in clocks(case.files):
        shifted = judge(files)
        same = (verdict.rank, verdict.host, verdict.category)
        assert (shifted.rank, shifted.host, shifted.category) == same, title


def test_the_baselines_do_name_ranks() -> None:
    for name, baseline in BASELINES.items():
        right = sum(case.score(baseline(case)).rank for case in CASES)
        assert 0 < right < len(CASES), name
