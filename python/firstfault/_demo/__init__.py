"""The demo: a real torchrun job, a planted fault, torchrun's summary, our report."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from firstfault._demo.faults import FAULTS

RANKS = 4


def main(arguments: list[str]) -> int:
    """Run the demo's command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print(
            "firstfault demo: it starts a real torchrun job and needs torch for that:"
            " pip install torch",
            file=sys.stderr,
        )
        return 2
    directory = options.directory or Path(tempfile.mkdtemp(prefix="firstfault-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(
            f"firstfault demo: {directory} is not empty: its files would be taken for"
            " this job's. Name another --directory",
            file=sys.stderr,
        )
        return 2
    description = FAULTS[options.fault].__doc__ or ""
    _headline(f"Four gloo ranks; {description[0].lower()}{description[1:]}")
    status = run_job(options.fault, directory)
    summary = (directory / "agent.err").read_text(errors="replace")
    _headline(f"What torchrun says (exit status {status})")
    print(_box(summary))
    _headline(f"firstfault report {directory}")
    from firstfault import _native

    return _native.run_cli([b"report", os.fsencode(directory)])


def run_job(fault: str, directory: Path) -> int:
    """Run the demo's job with its logs in the directory; return torchrun's status."""
    worker = Path(__file__).with_name("worker.py")
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", f"--nproc-per-node={RANKS}"),
        *("--redirects=3", f"--log-dir={directory}"),
        *(os.fspath(worker), fault),
    ]
    with (directory / "agent.err").open("wb") as log:
        # The worker's imports must not find this folder's modules first.
        return subprocess.run(command, stderr=log, check=False).returncode


def _parser() -> argparse.ArgumentParser:
    faults = "\n".join(f"  {name:<10} {fn.__doc__}" for name, fn in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="firstfault demo",
        description="Starts a real torchrun job of four gloo ranks on this machine,"
        " lets rank 2 fail at step 3, and prints torchrun's own summary and our"
        " report.",
        epilog=f"faults:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "fault",
        nargs="?",
        default="segfault",
        choices=FAULTS,
        metavar="FAULT",
        help="what happens to rank 2 (default: segfault)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="where the job's logs go: a new or empty directory"
        " (default: a new temporary one, which is kept)",
    )
    return parser


def _box(summary: str) -> str:
    """Return torchrun's summary without its own traceback around it."""
    lines = summary.splitlines()
    borders = [at for at, line in enumerate(lines) if line and set(line) == {"="}]
    if not borders:
        return summary
    return "\n".join(lines[borders[0] : borders[-1] + 1])


def _headline(text: str) -> None:
    print(f"\n### {text}\n", flush=True)
