"""The audit of the handler's symbols finds what it is there to find."""

import subprocess

from crashes import ROOT


def test_a_panic_and_an_allocation_are_found() -> None:
    done = subprocess.run(
        ["sh", ROOT / "rust/audit/symbols.sh", "broken"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "the signal handler needs other symbols than " in done.stdout
    found = {line[2:] for line in done.stdout.splitlines() if line[:2] == "> "}
    assert found == {"firstfault_panic_reached", "malloc"}
    assert not any(line.startswith("< ") for line in done.stdout.splitlines())
