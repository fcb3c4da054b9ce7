"""The golden error files, which the Rust reader's tests read too: one truth."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from firstfault import ChildFailedError, MissingMessageError, ProcessFailure
from firstfault._error_file import message_of

DIRECTORY = Path(__file__).parent / "data" / "error_files"
FILES: dict[str, Any] = json.loads((DIRECTORY / "expected.json").read_text())["files"]


def test_every_file_is_listed() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {*FILES, "expected.json"}


@pytest.mark.parametrize("name", FILES)
def test_is_what_the_manifest_says(name: str) -> None:
    path, expected = DIRECTORY / name, FILES[name]
    if expected == "no message":
        with pytest.raises(MissingMessageError):
            ProcessFailure(0, 1, 1, str(path))
        return
    failure = ProcessFailure(0, 1, 1, str(path))
    assert failure.error_file == str(path)
    written = int(os.stat(path).st_mtime)
    assert str(ChildFailedError("job", {0: failure}))
    if expected == "damaged":
        assert f"error file {path} is damaged (" in failure.message
        assert (failure.timestamp, failure.time_ns) == (written, None)
        return
    message = str(message_of(failure.error_file_data))
    message = message.encode("utf-8", "backslashreplace").decode()
    if "message" in expected:
        assert message == expected["message"]
    else:
        assert message.startswith(expected["message_starts"])
    seconds = expected["timestamp"]
    assert failure.timestamp == (written if seconds is None else seconds)
    assert failure.time_ns == expected["time_ns"]
