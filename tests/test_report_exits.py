"""What leaves main by `sys.exit` is judged by the exception that it handled."""

import pytest

import firstfault
from conftest import Run

WRAPPED = """
import sys, traceback
from firstfault import record

def wrapper(fn):  # as hydra, click and many programs of their own have it
    def main():
        try:
            return fn()
        except Exception:
            traceback.print_exc()
            sys.exit(1)
    return main

def main():
    {}

if sys.argv[1] == "outside":
    main = record(wrapper(main))
else:
    main = wrapper(record(main))
main()
"""


def cause_of(run: Run, program: str, *arguments: str) -> firstfault.RootCause:
    """Return what the report says of what a program left."""
    ended = run(program, *arguments)
    cause = firstfault.report(ended.directory).root_cause
    assert ended.status != 0
    assert cause is not None
    return cause


@pytest.mark.parametrize("order", ["outside", "inside"])
@pytest.mark.parametrize(
    ("fails", "category", "title"),
    [
        ("raise ValueError('bad')", "python_exception", "ValueError: bad"),
        ("{}['model']", "python_exception", "KeyError: 'model'"),
        ("import no_such_package", "import_error", "ModuleNotFoundError: "),
        ("open('/no/such')", "missing_file", "FileNotFoundError: [Errno 2]"),
        (
            "raise RuntimeError('[a.cc:1] Connection closed by peer [::1]:7. This')",
            "peer_lost",
            "RuntimeError: ",
        ),
    ],
)
def test_the_order_of_decorators_does_not_decide(
    order: str, fails: str, category: str, title: str, run: Run
) -> None:
    cause = cause_of(run, WRAPPED.format(fails), order)
    assert cause.category == category
    assert cause.title.startswith(title)
    said = [line for line in cause.evidence if "left main as" in line]
    assert said == (["it left main as: SystemExit: 1"] if order == "outside" else [])


ENDS = """
import sys, argparse, subprocess
from firstfault import record

@record
def main():
    {}

main()
"""


def handling(raises: str, ends: str) -> str:
    """Return a program that ends so in the handler of what it raises."""
    return ENDS.format(f"try: {raises}\n    except BaseException: {ends}")


@pytest.mark.parametrize(
    ("raises", "ends", "category", "title"),
    [
        (
            "open('/no/such')",
            "raise SystemExit(3)",
            "missing_file",
            "FileNotFound",
        ),
        # A text that says nothing to the rules, and one that does.
        (
            "open('/no/such')",
            "sys.exit('no data')",
            "missing_file",
            "FileNotFound",
        ),
        (
            "raise ValueError('bad')",
            "sys.exit('OSError: [Errno 28] No space left on device')",
            "disk_full",
            "SystemExit: ",
        ),
        (
            "raise KeyboardInterrupt",
            "sys.exit(130)",
            "interrupted",
            "KeyboardInterrupt",
        ),
        ("sys.exit(4)", "sys.exit(5)", "exit_without_traceback", "SystemExit: 5"),
        # Nothing was being handled any more.
        (
            "{}['x']",
            "raise SystemExit(3) from None",
            "exit_without_traceback",
            "SystemExit: 3",
        ),
        ("{}['x']", "pass\n    sys.exit(3)", "exit_without_traceback", "SystemExit: 3"),
    ],
)
def test_an_exit_in_a_handler(
    raises: str, ends: str, category: str, title: str, run: Run
) -> None:
    cause = cause_of(run, handling(raises, ends))
    assert (cause.category, cause.title[: len(title)]) == (category, title)
    shown = "it left main as: SystemExit: no data" in cause.evidence
    assert shown == ("no data" in ends)


@pytest.mark.parametrize("arguments", [("--steps", "ten"), (), ("--steps=1", "more")])
def test_a_wrong_command_line_is_one(arguments: tuple[str, ...], run: Run) -> None:
    parses = """
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.parse_args()
    """
    cause = cause_of(run, ENDS.format(parses), *arguments)
    assert cause.category == "config_error"


@pytest.mark.parametrize("code", ["0", "None", ""])
def test_a_success_in_a_handler_is_one(code: str, run: Run) -> None:
    ended = run(handling("{}['x']", f"sys.exit({code})"))
    assert (ended.status, ended.files) == (0, [])


def test_a_status_that_a_child_process_left_is_its_failure(run: Run) -> None:
    ends = """
    if sys.argv[1:]:
        raise FileNotFoundError(2, "No such file or directory", "shard 7")
    sys.exit(subprocess.call([sys.executable, __file__, "child"], stderr=-3))
    """
    cause = cause_of(run, ENDS.format(ends))
    assert (cause.category, cause.title[:19]) == ("missing_file", "FileNotFoundError: ")
    said = [line for line in cause.evidence if "after child process" in line]
    assert len(said) == 1
