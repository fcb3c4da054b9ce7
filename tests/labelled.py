"""Labelled jobs, what is right of a verdict, and what others would have said."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import firstfault

DATA = Path(__file__).parent / "data"

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Verdict:
    """What somebody holds for the cause."""

    rank: int | None
    host: str = ""
    category: str | None = None
    sure: bool = False


@dataclass(frozen=True)
class Score:
    """What is right of a verdict; None where there is nothing to be right or wrong."""

    rank: bool
    host: bool | None
    category: bool
    wrong_at_high: bool

    @property
    def right(self) -> bool:
        """Whether all of it is right."""
        return self.rank and self.host is not False and self.category


@dataclass(frozen=True)
class Case:
    """One job that has ended, its files, and the label that says what ended it."""

    name: str
    directory: Path
    label: dict[str, Any]

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The job's files by their paths."""
        paths = (path for path in self.directory.rglob("*") if path.is_file())
        return {
            path.relative_to(self.directory).as_posix(): path.read_bytes()
            for path in sorted(paths)
            if path != self.directory / "expected.json"
        }

    @property
    def held(self) -> bool:
        """Whether the case is of the third that nobody may look at to change rules.

        The hash of the name decides, once. The first jobs had shaped the rules before
        there were two halves: these have neither a planted fault nor a source.
        """
        first = "fault" not in self.label and "source" not in self.label
        digest = hashlib.sha256(self.name.encode()).digest()
        return not first and digest[0] % 3 == 0

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The answers that are right: that of the label, and what it also accepts."""
        others = self.label.get("acceptable", [])
        answers = [self.label, *({**self.label, **other} for other in others)]
        if "rank_optional" in self.label:
            answers.append({**self.label, "rank": None, "node": None})
        return answers

    def score(self, verdict: Verdict, *, renamed: bool = False) -> Score:
        """Return what is right of a verdict on this job, whose hosts may be renamed."""
        scores = [_score(verdict, answer, renamed) for answer in self.answers]
        return max(scores, key=lambda score: (score.right, score.rank, score.category))


def _score(verdict: Verdict, answer: dict[str, Any], renamed: bool) -> Score:
    rank = verdict.rank in _any(answer.get("rank"))
    if answer["category"]:
        category = verdict.category in answer["category"]
    else:
        category = verdict.category is None
    # A label without a host does not know it, or names nobody.
    hosts = [] if renamed else [host for host in _any(answer.get("node")) if host]
    host = verdict.host in hosts if hosts else None
    wrong = not (rank and category) or (host is False and verdict.host != "")
    return Score(rank, host, category, verdict.sure and wrong)


def _any(wanted: Any) -> list[Any]:
    """Return the values of which each is right."""
    return wanted if isinstance(wanted, list) else [wanted]


def cases() -> list[Case]:
    """Return all labelled jobs and public logs, by name."""
    labels = [*DATA.glob("corpus/*/expected.json")]
    labels += DATA.glob("public_logs/*/expected.json")
    found = (
        Case(path.parent.name, path.parent, json.loads(path.read_text()))
        for path in labels
    )
    return sorted(found, key=lambda case: case.name)


def judge(files: Files) -> Verdict:
    """Return our verdict."""
    try:
        cause = firstfault.report(files).root_cause
    except firstfault.NothingFoundError:
        cause = None
    if cause is None:
        return Verdict(None)
    sure = cause.confidence == "high"
    return Verdict(cause.rank, cause.host, cause.category, sure)


# What one gets without us. None of them says a category, or how sure it is.


def agents_root_cause(case: Case) -> Verdict:
    """Return the rank in the launchers' summaries, where all of them agree."""
    said = set()
    for log in _logs(case):
        for block in log.split("Root Cause (first observed failure):")[1:]:
            if found := re.search(r"host\s*: (\S+)\s.*?rank\s*: (\d+)", block, re.S):
                said.add((int(found[2]), found[1]))
    return Verdict(*said.pop()) if len(said) == 1 else Verdict(None)


def earliest_second(case: Case) -> Verdict:
    """Return the rank whose error file has the earliest time in whole seconds."""

    def second(name: str) -> float:
        message = json.loads(case.files[name])["message"]
        return int(message["extraInfo"]["timestamp"])

    return _earliest(case, second)


def earliest_mtime(case: Case) -> Verdict:
    """Return the rank whose error file was written first."""
    written = case.label.get("written", {})
    return _earliest(case, lambda name: written[name])


def lowest_rank(case: Case) -> Verdict:
    """Return the lowest of the ranks that left an error file or are in a summary."""
    failed = [_rank(case, name) for name in _error_files(case)]
    for log in _logs(case):
        failed += map(int, re.findall(r"^.*?  rank\s*: (\d+) \(local", log, re.M))
    return _named(case, min(failed, default=None))


BASELINES: dict[str, Callable[[Case], Verdict]] = {
    "each launcher's root cause": agents_root_cause,
    "earliest second": earliest_second,
    "earliest mtime": earliest_mtime,
    "lowest rank": lowest_rank,
}


def _logs(case: Case) -> Iterator[str]:
    for name, data in case.files.items():
        if not name.endswith((".json", ".box")):
            yield data.decode(errors="replace")


def _error_files(case: Case) -> list[str]:
    names = (name for name in case.files if name.endswith(".json"))
    return [
        name for name in names if ".term." not in name and _rank(case, name) is not None
    ]


def _rank(case: Case, name: str) -> int | None:
    """Return whose error file this is, by its path."""
    if found := re.search(r"/rank_(\d+)\.", name):
        return int(found[1])
    if found := re.search(r"^\D*(\d+)/.*/(\d+)/error\.json$", name):
        return int(found[1]) * case.label.get("nproc_per_node", 1) + int(found[2])
    return None


def _earliest(case: Case, time: Callable[[str], float]) -> Verdict:
    times = []
    for name in _error_files(case):
        try:
            times.append((time(name), _rank(case, name)))
        except (KeyError, TypeError, ValueError):
            continue
    return _named(case, min(times)[1] if times else None)


def _named(case: Case, rank: int | None) -> Verdict:
    if rank is None:
        return Verdict(None)
    # Ranks are numbered node by node.
    return Verdict(rank, f"node{rank // case.label.get('nproc_per_node', 1)}")
