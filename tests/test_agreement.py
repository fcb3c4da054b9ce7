"""Ranks of a real process group agree on the call at which all stop."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

from firstfault.deferred import _agreement, _watcher
from firstfault.deferred._agreement import Agreement
from firstfault.deferred._messages import Look
from firstfault.deferred._protocol import Phase
from process_groups import Rank, run_ranks

LOOP = 5


def train(
    failing: dict[int, int], agreement: Agreement | None = None
) -> dict[str, Any]:
    """Loop with a collective a step; these ranks fail in these steps, counted from 1.

    Step 0 is before the loop. Returns how this rank ended.
    """
    import torch
    import torch.distributed as dist

    agreement = agreement or Agreement.start()
    rank = dist.get_rank()
    stopped = False
    if failing.get(rank) == 0:
        agreement.announce()
    for step in range(1, LOOP + 1):
        dist.all_reduce(torch.ones(1))
        if failing.get(rank) == step:
            agreement.announce()
        if stopped := agreement.should_stop():
            assert agreement.should_stop(), "it is sticky"
            break
    agreement.finished()
    assert agreement.should_stop() or not (stopped or rank in failing)
    # As at the end of training: all come here before anybody takes the store away.
    dist.barrier()
    agreement.close()
    assert not agreement_threads()
    return {"stopped": stopped, "step": step, "agreed": agreement.stop_step}


def train_in_turn(jobs: list[dict[int, int]]) -> list[dict[str, Any]]:
    """Train again and again in one process group."""
    return [train(failing) for failing in jobs]


def agreement_threads() -> list[str]:
    """Return the names of the agreement's threads in this process."""
    return [t.name for t in threading.enumerate() if t.name.startswith("firstfault")]


def values(ranks: list[Rank]) -> list[Any]:
    """Return what the ranks returned, all of which ended well."""
    assert [rank.status for rank in ranks] == [0] * len(ranks), ranks
    return [rank.value for rank in ranks]


def happens(event: str) -> None:
    """Tell all ranks of an event, by a file and not by the store."""
    open(event_path(event), "w").close()


def awaits(event: str) -> None:
    """Wait until it has happened."""
    while not os.path.exists(event_path(event)):
        time.sleep(0.005)


def event_path(event: str) -> str:
    """Return the file that an event leaves."""
    return os.path.join(os.environ["RANKS_DIRECTORY"], f"{event}.event")


def test_all_stop_at_the_same_call() -> None:
    jobs = [{rank: step} for rank in range(3) for step in range(LOOP)]
    jobs += [{0: 2, 2: 2}, {0: 2, 1: 3}, {0: 0, 1: 0, 2: 0}]
    ranks = values(run_ranks(train_in_turn, 3, jobs))
    for failing, first, *others in zip(jobs, *ranks, strict=True):
        assert others == [first, first], failing
        assert first["stopped"], failing
        assert first["step"] == first["agreed"], failing
        # Peers may have made the next call already.
        next_call = max(min(failing.values()), 1)
        assert next_call <= first["agreed"] <= next_call + 1, failing


def test_a_failure_in_the_last_step_reaches_whoever_can_stop() -> None:
    jobs = [{rank: LOOP} for rank in range(3)] * 3
    ranks = values(run_ranks(train_in_turn, 3, jobs, store="agent"))
    for failing, *each in zip(jobs, *ranks, strict=True):
        assert {value["step"] for value in each} == {LOOP}, failing
        assert {value["agreed"] for value in each} <= {LOOP, LOOP + 1, None}, failing
        # One whose peers have made their last call is the only one in a call.
        assert len({value["stopped"] for value in each}) == 1, failing


@pytest.mark.parametrize("store", ["rank 0", "agent"])
def test_nobody_stops_where_nobody_fails(store: str) -> None:
    for rank in values(run_ranks(train_in_turn, 3, [{}] * 3, store=store)):
        assert rank == [{"stopped": False, "step": LOOP, "agreed": None}] * 3


def counts_operations() -> list[str]:
    """Return what the watcher did on the store while nobody failed."""
    done = []
    do = _watcher._do

    def counted(store: Any, operation: Any) -> object:
        done.append(type(operation).__name__)
        return do(store, operation)

    _watcher._do = counted
    train({})
    return done


def test_nothing_is_sent_until_one_fails() -> None:
    # Joined, whether asked, finished, and its own bell at the end.
    [_, operations] = values(run_ranks(counts_operations, 2))
    assert operations == ["Put", "Look", "Put", "Put"]


class Keys:
    """A store of which only which keys are set matters; counts its round trips."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.trips = 0

    def check(self, keys: list[str]) -> bool:
        """Return whether all are set."""
        self.trips += 1
        return self.there.issuperset(keys)


def test_few_that_are_missing_are_found_in_few_round_trips() -> None:
    few = ("a", "b", "c", "d", "e")
    for chosen in itertools.product([False, True], repeat=len(few)):
        there = frozenset(itertools.compress(few, chosen))
        assert _watcher._do(Keys(*there), Look(few)) == there
    ranks = tuple(map(str, range(1024)))
    store = Keys(*ranks[:700], *ranks[708:])  # A host is missing.
    assert _watcher._do(store, Look(ranks)) == store.there
    assert store.trips < 50
    all_there = Keys(*ranks)
    assert _watcher._do(all_there, Look(ranks)) == all_there.there
    assert all_there.trips == 1


def test_the_first_time_of_a_step_counts_and_only_steps_that_grow() -> None:
    agreement = Agreement(0, 1.0)
    marks = []
    for step in 3, 3, 4, 4, 7, 2, 9:
        agreement.mark(step)
        agreement.should_stop()
        marks.append(agreement.freeze()[1])
        agreement._open = True
    assert marks[1:3] == [((3, 0),), ((3, 0), (4, 2))]
    assert marks[3:] == [((3, 0), (4, 2)), ((4, 2), (7, 4)), (), ()]


def begins_anew() -> list[dict[str, Any]]:
    """Fail; train again, as whoever may come upon the same store after that."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    rank, size = dist.get_rank(), dist.get_world_size()
    store = distributed_c10d._get_default_store()
    # Gloo needs keys of its own for each group; the agreement has to do without.
    distributed_c10d._get_default_store = lambda: store
    ends = [train({0: 1})]
    dist.destroy_process_group()
    again = dist.PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=size)
    ends.append(train({}))
    ends.append(train({1: 2}))
    ends.append(train({}))
    for key, value in ("RESTART_COUNT", "1"), ("RUN_ID", "another"):
        # A new process: it knows only what its environment says.
        _agreement._generations.clear()
        os.environ[f"TORCHELASTIC_{key}"] = value
        ends += [train({}), train({1: 2})]
    return ends


def test_nobody_sees_an_old_flag() -> None:
    for ends in values(run_ranks(begins_anew, 2, store="agent")):
        stopped = [end["stopped"] for end in ends]
        assert stopped == [True, False, True, False, False, True, False, True]
        assert {end["step"] for end in ends if not end["stopped"]} == {LOOP}


def attempt(failing: dict[int, int]) -> tuple[dict[str, Any], int]:
    """Train; return how that ended, and the port of the store."""
    from torch.distributed.distributed_c10d import _get_default_store

    return train(failing), _get_default_store().underlying_store.port


def test_a_restart_on_the_port_of_rank_0s_own_store_sees_no_old_flag() -> None:
    port = 0
    for count, failing in enumerate([{1: 2}, {}]):
        env = {"TORCHELASTIC_RESTART_COUNT": str(count)}
        ranks = values(run_ranks(attempt, 2, failing, env=env, port=port))
        assert [end["stopped"] for end, _ in ranks] == [bool(failing)] * 2
        assert port in (0, ranks[0][1])
        port = ranks[0][1]


def agrees_in_a_part() -> str:
    """Let ranks 1 and 2 of three agree, named by their global ranks."""
    import torch.distributed as dist

    group = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        with pytest.raises(ValueError, match="rank 0 is not in the group"):
            Agreement.start(group)
        dist.barrier()
        return "alone"
    agreement = Agreement.start(group)
    if dist.get_rank() == 2:
        agreement.announce()
    return until_it_stops(agreement)


def test_the_ranks_of_a_subgroup_agree() -> None:
    assert values(run_ranks(agrees_in_a_part, 3))[1:] == ["stopped"] * 2


def leaves_early() -> dict[str, Any]:
    """Let rank 1 leave its loop after two calls, and rank 0 fail after three."""
    import torch.distributed as dist

    agreement = Agreement.start()
    rank = dist.get_rank()
    stopped = False
    for step in range(1, 3 if rank == 1 else 100):
        if rank == 0 and step == 4:
            awaits("rank 1 has left")
            agreement.announce()
        if rank == 2:
            time.sleep(0.01)
        if stopped := agreement.should_stop():
            break
    agreement.finished()
    if rank == 1:
        # In the store, that is.
        while not agreement._watcher._state.finished:
            time.sleep(0.005)
        while agreement._watcher._state.phase is Phase.FINISHING:
            time.sleep(0.005)
        happens("rank 1 has left")
    dist.barrier()
    agreement.close()
    return {"stopped": stopped, "step": step}


def test_a_shorter_loop_holds_up_nobody_and_is_named() -> None:
    ranks = run_ranks(leaves_early, 3)
    assert [value["stopped"] for value in values(ranks)] == [True, False, True]
    assert ranks[0].value["step"] == ranks[2].value["step"]
    text = "rank 1 left its loop after 2"
    assert [text in rank.output for rank in ranks] == [True, False, True], ranks


def comes_late() -> dict[str, Any]:
    """Let rank 2 join when the others have stopped."""
    import torch.distributed as dist

    rank = dist.get_rank()
    if rank == 2:
        awaits("0 has stopped")
        awaits("1 has stopped")
    agreement = Agreement.start()
    if rank == 0:
        for _ in range(3):
            agreement.should_stop()
        agreement.announce()
    calls = 1
    while not agreement.should_stop():
        calls += 1
        time.sleep(0.001)
    happens(f"{rank} has stopped")
    agreement.finished()
    dist.barrier()
    agreement.close()
    return {"agreed": agreement.stop_step, "at": agreement.calls}


def test_nobody_waits_for_a_rank_that_comes_late() -> None:
    first, *others = values(run_ranks(comes_late, 3))
    assert first["agreed"] == first["at"] >= 4
    assert others == [first, first]


def announces_from_anywhere() -> list[str]:
    """Fail in a thread, in a signal handler, and in a forked child."""
    import torch.distributed as dist

    leads = dist.get_rank() == 0
    ends = []

    agreement = Agreement.start()
    if leads:
        thread = threading.Thread(target=agreement.announce)
        thread.start()
        thread.join()
    ends.append(until_it_stops(agreement))

    agreement = Agreement.start()
    signal.signal(signal.SIGALRM, lambda *_: agreement.announce())
    if leads:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    ends.append(until_it_stops(agreement))

    agreement = Agreement.start()
    if (child := os.fork()) == 0:
        status = 0
        # No thread and no store: a child's failure is its own.
        status |= 1 * bool(agreement_threads())
        status |= 2 * agreement.should_stop()
        agreement.announce()
        status |= 4 * (not agreement.should_stop())
        agreement.close()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert agreement_threads()
    assert not agreement.should_stop()
    dist.barrier()
    ends.append("on" if agreement.stop_step is None else "stopped")
    agreement.close()
    return ends


def until_it_stops(agreement: Agreement) -> str:
    """Call until True, and leave."""
    import torch.distributed as dist

    while not agreement.should_stop():
        pass
    agreement.finished()
    dist.barrier()
    agreement.close()
    return "stopped"


def test_a_failure_may_be_announced_from_anywhere_but_a_child() -> None:
    ranks = values(run_ranks(announces_from_anywhere, 2))
    assert ranks == [["stopped", "stopped", "on"]] * 2


def test_without_a_process_group_it_is_local() -> None:
    assert not agreement_threads()
    agreement = Agreement.start()
    assert "torch" not in sys.modules or not agreement_threads()
    assert [agreement.should_stop() for _ in range(3)] == [False] * 3
    assert agreement.stop_step is None
    agreement.announce()
    agreement.announce()
    assert agreement.stop_step == 4
    assert [agreement.should_stop() for _ in range(2)] == [True] * 2
    agreement.finished()
    agreement.close()
    assert agreement.should_stop()


def test_alone_in_a_group_it_is_local() -> None:
    assert values(run_ranks(train, 1, {0: 2})) == [
        {"stopped": True, "step": 2, "agreed": 2}
    ]


def leaves_its_loop(agrees: bool) -> None:
    """Let rank 1 fail in step 3, and close as after any loop, with collectives."""
    import torch
    import torch.distributed as dist

    agreement = Agreement.start() if agrees else None
    for step in range(1, LOOP + 1):
        dist.all_reduce(torch.ones(1))
        failed = dist.get_rank() == 1 and step == 3
        if agreement is None:
            stop = failed
        else:
            if failed:
                agreement.announce()
            stop = agreement.should_stop()
        if stop:
            break
    if agreement is not None:
        agreement.finished()
    dist.broadcast(torch.ones(4), 0)
    dist.barrier()


def test_with_an_agreement_all_reach_the_closing_collectives() -> None:
    assert values(run_ranks(leaves_its_loop, 2, True)) == [None, None]


def test_without_an_agreement_they_wait_for_each_other_in_different_ones() -> None:
    first, second = run_ranks(leaves_its_loop, 2, False, deadline=8, may_hang=True)
    assert first.hung
    assert second.hung
    assert "in all_reduce" in first.output
    assert "in broadcast" in second.output
