"""Decorators inside decorators, ours and torch's: the full record survives."""

import json

import pytest

from conftest import Run

NESTED = """
import sys, time
import firstfault, torch_errors
records = {"ours": firstfault.record, "torch": torch_errors.record}

def main():
    try: {}["cause"]
    except KeyError as e: raise ValueError("x" * int(sys.argv[2])) from e

for name in sys.argv[1].split("("):
    main = records[name](main)
main()
"""


@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize(
    "inside_out",
    ["ours(ours", "ours(torch", "torch(ours", "torch(ours(torch", "ours(torch(ours"],
)
def test_the_full_record_survives(inside_out: str, size: int, run: Run) -> None:
    ended = run(NESTED, inside_out, str(size))
    assert ended.status == 1
    outermost = inside_out.rpartition("(")[2]
    if outermost == "ours":
        record = ended.record()
    else:
        assert "firstfault" not in json.loads(
            (ended.directory / "error.json").read_text()
        )
        record = ended.record("error.firstfault.json")
    section = record["firstfault"]
    assert section["final"] is True
    assert section["exception"]["chain"][0]["type"] == "KeyError"
    assert "preceded_by" not in section
    assert ended.files == ["error.firstfault.json", "error.json"]
    from firstfault import ProcessFailure

    failure = ProcessFailure(0, 1, 1, str(ended.directory / "error.json"))
    assert failure.error_file_data == record
    assert failure.time_ns == section["time_ns"]


def test_the_first_time_is_kept(run: Run) -> None:
    ended = run("""
import json, os, time
from firstfault import record
@record
def inner(): raise ValueError("x")
@record
def main():
    try: inner()
    finally:
        print(json.load(open(os.environ["TORCHELASTIC_ERROR_FILE"]))["firstfault"])
        time.sleep(0.02)
main()
""")
    section = ended.record()["firstfault"]
    assert f"'time_ns': {section['time_ns']}" in ended.stdout
    assert "'final': False" in ended.stdout
    assert section["final"] is True


def test_a_caught_inner_failure_is_mentioned(run: Run) -> None:
    ended = run("""
from firstfault import record
@record
def inner(): raise ValueError("tolerated")
@record
def main():
    try: inner()
    except ValueError: pass
    raise RuntimeError("fatal")
main()
""")
    record = ended.record()
    assert record["message"]["message"] == "RuntimeError: fatal"
    before = record["firstfault"]["preceded_by"]
    assert [entry["message"] for entry in before] == ["ValueError: tolerated"]


def test_a_caught_inner_failure_of_a_good_program_stays_provisional(run: Run) -> None:
    ended = run("""
from firstfault import record
@record
def inner(): raise ValueError("tolerated")
@record
def main():
    try: inner()
    except ValueError: pass
main()
""")
    assert ended.status == 0
    assert ended.record()["firstfault"]["final"] is False


def test_the_same_text_in_a_loop_is_another_failure(run: Run) -> None:
    ended = run("""
import json, os, time
from firstfault import record
@record
def inner(): raise ValueError("again %d" % 1)
@record
def main():
    for _ in range(3):
        try: inner()
        except ValueError: time.sleep(0.01)
    inner()
main()
""")
    section = ended.record()["firstfault"]
    assert len(section["preceded_by"]) == 3
    assert section["time_ns"] - section["preceded_by"][-1]["time_ns"] >= 10_000_000


def test_an_exit_through_both(run: Run) -> None:
    for order in ("ours(torch", "torch(ours", "ours(ours"):
        script = NESTED.replace(
            """    try: {}["cause"]
    except KeyError as e: raise ValueError("x" * int(sys.argv[2])) from e
""",
            "    sys.exit(int(sys.argv[2]))\n",
        )
        ended = run(script, order, "7")
        assert ended.status == 7
        record = ended.record()
        assert record["message"]["message"] == "SystemExit: 7"
        assert record["message"]["errorCode"] == 7
        assert record["firstfault"]["kind"] == "exit"
        assert run(script, order, "0").status == 0


CHILD_FAILED = """
import sys
import firstfault, torch_errors
raiser, recorder, path = sys.argv[1:4]
libraries = {"ours": firstfault, "torch": torch_errors}
failure = libraries[raiser].ProcessFailure(2, 4711, -11, path)
@libraries[recorder].record
def main():
    raise libraries[raiser].ChildFailedError("agent", {10: failure})
try: main()
except libraries[recorder].ChildFailedError if raiser == recorder else Exception as e:
    print(type(e).__name__, e.args[0] == e.format_msg())
"""


@pytest.mark.parametrize("recorder", ["ours", "torch"])
@pytest.mark.parametrize("raiser", ["ours", "torch"])
class TestChildFailed:
    """Whose `record` ever catches whose `ChildFailedError`."""

    def test_is_passed_on(self, raiser: str, recorder: str, run: Run) -> None:
        child = run(NESTED, "ours", "3", env={"TORCHELASTIC_ERROR_FILE": None})
        path = child.directory / "child.json"
        run(NESTED, "ours", "3", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        child_record = child.record("child.json")
        ended = run(CHILD_FAILED, raiser, recorder, str(path))
        assert ended.stdout.startswith("ChildFailedError ")
        record = ended.record()
        assert record["message"]["errorCode"] == -11
        del record["message"]["errorCode"]
        assert record == child_record
        assert "error.firstfault.json" not in ended.files

    def test_without_a_file_says_so(self, raiser: str, recorder: str, run: Run) -> None:
        ended = run(
            "import logging\nlogging.basicConfig(level=10)\n" + CHILD_FAILED,
            raiser,
            recorder,
            "nowhere",
            env={"LOGLEVEL": "INFO"},
        )
        assert ended.files == []
        if recorder == "ours":
            assert (
                "INFO:firstfault:local_rank 10 FAILED with no error file."
                " Decorate your entrypoint fn with @record for traceback info."
                " See: https://pytorch.org/docs/stable/elastic/errors.html\n"
            ) in ended.stderr
        assert "FAILED with no error file." in ended.stderr


def test_a_child_failed_error_is_never_recorded_twice(run: Run) -> None:
    for order in ("ours(ours", "torch(ours", "ours(torch"):
        ended = run(f"""
import json, os, sys
import firstfault, torch_errors
records = {{"ours": firstfault.record, "torch": torch_errors.record}}
with open("child.json", "w") as file:
    extra = {{"py_callstack": "stack", "timestamp": "1700000000"}}
    json.dump({{"message": {{"message": "m", "extraInfo": extra}}}}, file)
failure = firstfault.ProcessFailure(0, 1, 3, "child.json")
def main(): raise firstfault.ChildFailedError("agent", {{0: failure}})
for name in "{order}".split("("): main = records[name](main)
main()
""")
        assert ended.status == 1
        message = json.loads((ended.directory / "error.json").read_text())["message"]
        assert (message["message"], message["errorCode"]) == ("m", 3)
        assert [name for name in ended.files if name != "error.json"] == []


def test_a_forked_child_that_returns_through_all_records_once(run: Run) -> None:
    ended = run("""
import os
from firstfault import record
@record
def inner():
    if os.fork() == 0: raise ValueError("in the child")
    os.wait()
@record
def main(): inner()
main()
""")
    assert ended.status == 0
    (name,) = (name for name in ended.files if "firstfault" not in name)
    assert ended.record(name)["firstfault"]["final"] is True


def test_a_forked_child_with_a_function_of_its_own_is_final(run: Run) -> None:
    ended = run("""
import os
from firstfault import record
@record
def work(): raise ValueError("in the child")
@record
def main():
    if os.fork() == 0:
        os.environ["TORCHELASTIC_ERROR_FILE"] += ".child.json"
        try: work()
        finally: os._exit(1)
    os.wait()
main()
""")
    assert ended.record("error.json.child.json")["firstfault"]["final"] is True


def test_a_broken_child_failed_error_is_a_warning(run: Run) -> None:
    ended = run("""
from firstfault import record, ChildFailedError, ProcessFailure
class Broken(ChildFailedError):
    def get_first_failure(self):
        if getattr(self, "made", False): raise KeyError("broken")
        self.made = True
        return super().get_first_failure()
@record
def main(): raise Broken("agent", {0: ProcessFailure(0, 1, 1, "")})
main()
""")
    assert "Unable to record Broken. KeyError: 'broken'" in ended.stderr
    assert "agent FAILED" in ended.stderr
    assert ended.status == 1
