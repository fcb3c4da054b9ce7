"""How often the verdict is right, for us and for four baselines; `make accuracy`.

The held third is for a look at the end of a piece of work: rules are changed for
what the tuning part shows, and `--misses` names cases of that part only.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator

from labelled import BASELINES, Case, Score, Verdict, cases, judge
from variants import clocks, cuts, losses, names, orders

# Needs what a checkout does not keep, and what labels say since they are made here.
MTIME = "earliest mtime"


def share(flags: Iterable[bool | None]) -> str:
    """Return how many of those that can be right are: "29 of 30  97 %"."""
    known = [flag for flag in flags if flag is not None]
    if not known:
        return f"{'-':>17}"
    part = f"{sum(known)} of {len(known)}"
    return f"{part:>11} {100 * sum(known) / len(known):4.0f} %"


def line(title: str, scores: list[Score], *, category: bool = True) -> str:
    """Return one row of the table."""
    columns = [share(s.rank for s in scores), share(s.host for s in scores)]
    columns += [share(s.category if category else None for s in scores)]
    wrong = sum(s.wrong_at_high for s in scores) if category else "-"
    return f"{title:<30}{''.join(columns)}{wrong:>10}"


def altered(chosen: list[Case]) -> Iterator[tuple[str, list[str]]]:
    """Yield how the verdict on changed files compares, and where it does not hold."""
    kinds: dict[str, Callable[[Case], Iterable[tuple[str, dict[str, bytes]]]]] = {
        "any order": lambda case: orders(case.name, case.files),
        "clocks 5 s off": lambda case: clocks(case.files),
        "files lost": lambda case: losses(case.name, case.files),
        "files cut": lambda case: cuts(case.name, case.files),
        "files renamed": lambda case: names(case.files),
    }
    before = {case.name: judge(case.files) for case in chosen}
    for kind, variants in kinds.items():
        scores, same, misses = [], [], []
        for case in chosen:
            for title, files in variants(case):
                verdict = judge(files)
                scores.append(case.score(verdict, renamed=kind == "files renamed"))
                same.append(_same(verdict, before[case.name], kind))
                where = f"{case.name} ({title}): {verdict}"
                if scores[-1].wrong_at_high:
                    misses.append(f"wrong at high: {where}")
                must_hold = kind in ("any order", "clocks 5 s off")
                if must_hold and not same[-1]:
                    misses.append(f"another verdict: {where}")
        yield f"{line(kind, scores)}{share(same):>22}", misses


def _same(one: Verdict, other: Verdict, kind: str) -> bool:
    if kind == "any order":
        return one == other
    if kind == "files renamed":
        return (one.rank, one.category) == (other.rank, other.category)
    return (one.rank, one.host, one.category) == (
        other.rank,
        other.host,
        other.category,
    )


def tell(title: str, chosen: list[Case], *, show_misses: bool) -> None:
    """Print the table of one part of the cases."""
    ours = [(case, judge(case.files)) for case in chosen]
    scores = [case.score(verdict) for case, verdict in ours]
    print(f"\n{title}: {len(chosen)} jobs")
    print(f"{'':<30}{'rank':>17}{'host':>17}{'category':>17}{'wrong at high':>15}")
    print(line("firstfault", scores))
    named = [case for case in chosen if case.label.get("rank") is not None]
    for name, baseline in BASELINES.items():
        able = [case for case in named if name != MTIME or "written" in case.label]
        theirs = [case.score(baseline(case)) for case in able]
        print(line(name, theirs, category=False))
    print("of the baselines, the jobs that have a culprit rank; they say no category")
    misses = []
    for (case, verdict), score in zip(ours, scores, strict=True):
        if not score.right:
            wanted = {key: case.label.get(key) for key in ("rank", "node", "category")}
            misses.append(f"{case.name}: {verdict}, not {wanted}")
    print(f"{'with changed files':<30}{'':>51}{'':>15}{'same verdict':>17}")
    for row, where in altered(chosen):
        print(row)
        misses += where
    if show_misses:
        print("", *misses, sep="\n  ")


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=["tuning", "held"], help="only this part")
    parser.add_argument("--misses", action="store_true", help="name those of tuning")
    options = parser.parse_args()
    found = cases()
    for half in "tuning", "held":
        if options.half in (None, half):
            chosen = [case for case in found if case.held == (half == "held")]
            show = options.misses and half == "tuning"
            tell(half, chosen, show_misses=show)


if __name__ == "__main__":
    main()
