"""The logs that people posted are well labelled, and hold nobody's particulars."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

DIRECTORY = Path(__file__).parent / "data" / "public_logs"
CASES = sorted(path.name for path in DIRECTORY.iterdir() if path.is_dir())

CATEGORIES = set((DIRECTORY / "categories.txt").read_text().split())
ANSWER = {"category", "rank", "node", "local_rank"}
REQUIRED = ANSWER | {"nodes", "nproc_per_node", "source", "why", "sure"}
OPTIONAL = {"uniform", "acceptable"}

EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w{2,}")
TOKEN = re.compile(r"(?:hf|ghp|sk)_[A-Za-z0-9]{16,}|\b[0-9a-fA-F]{33,}\b|Bearer \S+")
NEUTRAL = "user|dev|res|trainer|ubuntu|runner"
HOME = re.compile(rf"/(?:home|Users)/(?!(?:{NEUTRAL})/)[^/\s\"']+/")


def label(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DIRECTORY / case / "expected.json").read_text())
    return found


def logs(case: str) -> list[Path]:
    files = (path for path in (DIRECTORY / case).rglob("*") if path.is_file())
    return [path for path in files if path.name != "expected.json"]


def check_answer(answer: dict[str, Any]) -> None:
    categories = answer.get("category", ["unknown"])
    assert categories
    assert set(categories) <= CATEGORIES
    for field in ("rank", "local_rank"):
        assert isinstance(answer.get(field), int | None)
    assert answer.get("node") is None or answer["node"]


@pytest.mark.parametrize("case", CASES)
def test_label(case: str) -> None:
    expected = label(case)
    assert REQUIRED <= set(expected) <= REQUIRED | OPTIONAL
    check_answer(expected)
    for other in expected.get("acceptable", []):
        assert other
        assert set(other) <= ANSWER
        check_answer(other)
        assert any(other[field] != expected[field] for field in other)
    if expected.get("uniform"):
        assert expected["rank"] is None
    for size in ("nodes", "nproc_per_node"):
        assert expected[size] is None or expected[size] > 0
    assert urlsplit(expected["source"]).scheme == "https"
    assert expected["sure"] in ("certain", "likely")
    assert 30 < len(expected["why"]) < 300


@pytest.mark.parametrize("case", CASES)
def test_named_host_is_in_the_log(case: str) -> None:
    expected = label(case)
    answers = [expected, *expected.get("acceptable", [])]
    text = b"\n".join(path.read_bytes() for path in logs(case)).decode(errors="replace")
    for answer in answers:
        assert (answer.get("node") or "") in text


@pytest.mark.parametrize("case", CASES)
def test_nothing_personal_is_left(case: str) -> None:
    files = logs(case)
    assert files
    for path in files:
        text = path.read_bytes().decode(errors="replace")
        assert 0 < len(text) <= 30_000
        for pattern in (EMAIL, TOKEN, HOME):
            assert not pattern.search(text), path


def test_no_case_is_there_twice() -> None:
    # The nodes of one job may say the same.
    each = [{path.read_bytes() for path in logs(case)} for case in CASES]
    contents = [content for of_case in each for content in of_case]
    assert len(contents) == len(set(contents))
    sources = [label(case)["source"] for case in CASES]
    assert len(sources) == len(set(sources))
