"""The verdict stays as right as it was: on each tuning job, on so many held ones."""

import re

import pytest

from labelled import BASELINES, Case, cases, judge
from variants import clocks, forms, joined, orders

CASES = cases()
TUNING = [case for case in CASES if not case.held]
HELD = [case for case in CASES if case.held]

# How many held cases were wrong when last counted: in rank, host and category. Which
# ones is nobody's business here, so that rules are not bent to fit them.
HELD_MISSES = (6, 7, 46)
HELD_WRONG_AT_HIGH = 0


@pytest.mark.parametrize("case", TUNING, ids=lambda case: case.name)
def test_a_tuning_job_is_judged_right(case: Case) -> None:
    verdict = judge(case.files)
    score = case.score(verdict)
    assert not score.wrong_at_high, verdict
    assert score.right, verdict


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


@pytest.mark.parametrize("case", TUNING, ids=lambda case: case.name)
def test_another_form_of_the_logs_names_no_other_rank(case: Case) -> None:
    for title, files in forms(case.files):
        verdict = judge(files)
        score = case.score(verdict)
        assert not score.wrong_at_high, (title, verdict)
        # Of each line twice it is not always told whether two processes wrote it.
        twice = title == "each line twice"
        assert score.rank or verdict.rank is None or twice, (title, verdict)


MARGINS = ["[rank {}] ", "rank={} | ", "{}: ", "[{}] ", "[1,{}]<stderr>:"]


@pytest.mark.parametrize("margin", MARGINS)
def test_ranks_are_told_apart_by_what_stands_before_their_lines(margin: str) -> None:
    rights = []
    for case in TUNING:
        names = {name: re.match(r"task-(\d+)\.out$", name) for name in case.files}
        ranks = {int(m[1]): case.files[name] for name, m in names.items() if m}
        if not ranks:
            continue
        # Torch's own labels say it already.
        own = {k: re.sub(rb"(?m)^\[rank\d+\]: ?", b"", v) for k, v in ranks.items()}
        rest = {name: case.files[name] for name, found in names.items() if not found}
        verdict = judge({"train.log": joined(own, margin), **rest})
        rights.append(case.score(verdict).rank)
        # Who exits well without a word has no line in such a log, and where each rank
        # has one line alone, its number may be that of a list.
        assert rights[-1] or verdict.rank is None, (case.name, verdict)
    assert sum(rights) > 0.7 * len(rights) > 0


def test_the_baselines_do_name_ranks() -> None:
    for name, baseline in BASELINES.items():
        right = sum(case.score(baseline(case)).rank for case in CASES)
        assert 0 < right < len(CASES), name
