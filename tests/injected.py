"""The package as the tests build it for themselves: its handler breaks on purpose."""

import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import firstfault
from crashes import ROOT

# In the order in which they run, from the one table that there is of them.
STAGES = re.findall(
    r'\(\s*Stage::\w+,\s*"(\w+)"', (ROOT / "rust/handler/src/stages.rs").read_text()
)


@functools.cache
def injected_package() -> Path:
    """Return a directory for PYTHONPATH with the package, built with failures."""
    command = ["cargo", "build", "-q", "--locked", "-p", "firstfault-binding"]
    done = subprocess.run(
        [*command, "--features", "inject", "--message-format=json"],
        cwd=ROOT,
        # As maturin does: not linked against libpython.
        env={**os.environ, "PYO3_BUILD_EXTENSION_MODULE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (library,) = (
        message["filenames"][0]
        for message in map(json.loads, done.stdout.splitlines())
        if message.get("target", {}).get("name") == "_native"
    )
    directory = Path(tempfile.mkdtemp(prefix="firstfault-injected-"))
    atexit.register(shutil.rmtree, directory)
    package = directory / "firstfault"
    package.mkdir()
    for path in Path(firstfault.__path__[0]).iterdir():
        if not path.name.startswith("_native."):
            (package / path.name).symlink_to(path)
    shutil.copy(library, package / "_native.abi3.so")
    return directory


def injecting(*plans: str, happened: Path | None = None) -> dict[str, str | None]:
    """Return the environment of a program in whose handler these failures happen.

    The file `happened` gets a byte for each.
    """
    return {
        "PYTHONPATH": str(injected_package()),
        "FIRSTFAULT_INJECT": ",".join(plans),
        "FIRSTFAULT_INJECTED": str(happened) if happened else None,
    }
