"""Exceptions as facts: bounded, and whatever the exception does to prevent it."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from firstfault import _native
from firstfault._error_record import COMPACT_BYTES, ErrorRecord, make
from firstfault._exception import (
    callstack,
    chain_of,
    describe,
    exit_status,
    headline,
    is_collateral,
    leaves_of,
    plain_callstack,
)
from firstfault._text import clip, cut, encode, is_message, printable

MOMENT = (1700000000_000000001, 5, 100, True)


def record(e: BaseException, time_ns: int = MOMENT[0]) -> ErrorRecord:
    return make(e, (time_ns, *MOMENT[1:]), final=True, preceded_by=[])


def chained(*links: BaseException, explicit: bool = False) -> BaseException:
    """Return the last of these, each raised while the one before was handled."""
    for earlier, later in pairwise(links):
        if explicit:
            later.__cause__ = earlier
        later.__context__ = earlier
    return links[-1]


class TestText:
    @pytest.mark.parametrize(
        "value",
        [
            {},
            [],
            {"a": [1, -2, 2**70, True, False, None, "text", ("t",)]},
            "".join(map(chr, range(0x250))),
            '"\\/\b\f\n\r\t\x7f\x80\u2028 é 😀 \U0010ffff',
            {"é\n": {"nested": [[[]]]}},
        ],
    )
    def test_encodes_as_json_does(self, value: object) -> None:
        assert json.loads(encode(value)) == json.loads(json.dumps(value))
        assert encode(value).isascii()

    def test_makes_surrogates_printable(self) -> None:
        class Odd(str):
            def encode(self, *_: object) -> bytes:  # type: ignore[override]
                raise KeyError

        assert printable("a\udcff") == "a\\udcff"
        assert type(printable(Odd("x"))) is str

    @pytest.mark.parametrize("letter", ["x", "é", "😀"])
    @pytest.mark.parametrize("head", [0.25, 0.5, 0.75])
    def test_cuts_the_middle(self, letter: str, head: float) -> None:
        for length in (0, 1, 24, 63, 64, 65, 255, 256, 257, 5000):
            text = letter * length
            short, missing = cut(text, 256, head)
            assert len(short.encode()) <= 256
            if missing == 0:
                assert short == text
            else:
                first, _, rest = short.partition(f"\n... {missing} bytes cut ...\n")
                assert len((first + rest).encode()) + missing == len(text.encode())
                assert set(first + rest) == {letter}
                assert len(first + rest) > 150 / len(letter.encode())
            assert is_message(text, short)
        assert not is_message("y" * 5000, cut("x" * 5000, 256)[0])

    def test_what_was_clipped_is_counted_with_what_is_cut(self) -> None:
        text = "".join(chr(ord("a") + n % 26) for n in range(300_000))
        short, missing = cut(clip(text), 256)
        kept = short.replace(f"\n... {missing} bytes cut ...\n", "")
        assert len(kept) + missing == len(text)
        assert text.startswith(kept[:100])
        assert text.endswith(kept[-100:])
        assert cut(short, 128)[1] == len(text) - (128 - 48)
        assert is_message(clip(text), short)
        assert clip(text[:65536]) == text[:65536]
        assert len(clip("é" * 65537)) < 65600

    def test_a_very_long_text_of_ones_own_class_is_clipped_too(self) -> None:
        class Odd(str):
            def __len__(self) -> int:
                raise KeyError

            __getitem__ = __len__  # type: ignore[assignment]

        assert len(clip(Odd("x" * 100_000))) < 65600


class TestChains:
    def test_is_nearest_first(self) -> None:
        a, b, c = ValueError("a"), KeyError("b"), OSError("c")
        b.__context__ = a
        c.__cause__ = b
        assert chain_of(c) == ([(b, "cause"), (a, "context")], 0)

    def test_a_long_one_keeps_both_ends(self) -> None:
        errors = [ValueError(str(number)) for number in range(100)]
        chain, excess = chain_of(chained(*errors))
        assert [str(e) for e, _ in chain] == [
            *map(str, range(98, 90, -1)),
            *map(str, range(7, -1, -1)),
        ]
        assert excess == 99 - 16

    @pytest.mark.parametrize("explicit", [True, False])
    def test_a_circle_ends(self, explicit: bool) -> None:
        a, b = ValueError("a"), ValueError("b")
        chained(a, b, a, explicit=explicit)
        assert [link[0] for link in chain_of(a)[0]] == [b]

    def test_a_suppressed_context_is_none(self) -> None:
        error = chained(ValueError("a"), ValueError("b"))
        error.__suppress_context__ = True
        assert chain_of(error) == ([], 0)


class TestGroups:
    def test_has_leaves_in_order(self) -> None:
        inner = ExceptionGroup("i", [KeyError("b"), OSError("c")])
        group = ExceptionGroup("o", [ValueError("a"), inner, TypeError("d")])
        assert [type(leaf).__name__ for leaf in leaves_of(group)[0]] == [
            "ValueError",
            "KeyError",
            "OSError",
            "TypeError",
        ]
        assert leaves_of(ValueError("x")) == ([], 0)

    def test_a_wide_one_is_bounded_and_counted(self) -> None:
        leaves, excess = leaves_of(
            ExceptionGroup("g", [ValueError(str(n)) for n in range(500)])
        )
        assert (len(leaves), excess) == (64, 436)


def wide() -> BaseException:
    return ExceptionGroup("wide", [ValueError(str(n)) for n in range(200_000)])


def deep_group() -> BaseException:
    error: Exception = ValueError("deepest")
    for _ in range(50_000):
        error = ExceptionGroup("deep", [error])
    return error


def deep_chain() -> BaseException:
    return chained(*(ValueError(str(n)) for n in range(200_000)))


def many_notes() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = ["x" * 100_000] * 1000
    return error


def odd_notes() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = 17  # type: ignore[assignment]
    return error


def odd_class() -> BaseException:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise SystemExit(3)

        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise KeyError("no module")

    class Odd(Exception, metaclass=Meta):
        @property
        def retryable(self) -> bool:
            raise GeneratorExit

        @property
        def __notes__(self) -> list[str]:
            raise KeyError(4)

    return Odd("x")


def many_frames() -> BaseException:
    def recur(depth: int) -> None:
        recur(depth + 1) if depth % 2 else bounce(depth + 1)

    def bounce(depth: int) -> None:
        recur(depth)

    try:
        recur(0)
    except RecursionError as e:
        return e
    raise AssertionError


HOSTILE: list[Callable[[], BaseException]] = [
    wide,
    deep_group,
    deep_chain,
    many_notes,
    odd_notes,
    odd_class,
    many_frames,
]


@pytest.mark.parametrize("make_error", HOSTILE, ids=lambda f: f.__name__)
def test_whatever_it_is_the_record_is_small(
    make_error: Callable[[], BaseException],
) -> None:
    error = make_error()
    made = record(error)
    assert len(made.content) < 512 * 1024
    parsed = json.loads(made.content)
    assert parsed["message"]["extraInfo"]["timestamp"].isdigit()
    assert parsed["firstfault"]["exception"]["type"]
    stack = parsed["message"]["extraInfo"]["py_callstack"]
    assert 10 < len(stack.encode()) <= 64 * 1024
    made.content.decode().encode("ascii")
    while error.__context__ is not None:  # or freeing the chain recurses
        error, error.__context__ = error.__context__, None


def test_what_was_cut_is_counted() -> None:
    def truncated(error: BaseException) -> dict[str, int]:
        section = json.loads(record(error).content)["firstfault"]
        return dict(section["truncated"])

    assert truncated(many_notes())["notes"] == 1000 - 16
    assert truncated(ExceptionGroup("g", [OSError()] * 100))["group"] == 36
    assert truncated(chained(*(OSError() for _ in range(20))))["chain"] == 3
    assert truncated(ValueError("x" * 20_000))["message"] > 3_000


class TestCompact:
    @pytest.mark.parametrize(
        "text", ["short", "x" * 10**6, "é\n\0" * 10**5, "😀" * 9999]
    )
    def test_fits_and_says_the_same(self, text: str) -> None:
        try:
            raise ValueError(text)
        except ValueError as e:
            made = record(e)
        assert len(made.compact) <= COMPACT_BYTES
        assert made.compact.startswith(b'{"message": {"message": "ValueError: ')
        compact = json.loads(made.compact)
        assert compact["message"].keys() == {"message", "extraInfo"}
        assert compact["message"]["extraInfo"]["timestamp"] == "1700000000"
        assert compact["firstfault"]["final"] is True
        if text == "short":
            assert compact["message"] == json.loads(made.content)["message"]
        else:
            assert len(made.compact) > COMPACT_BYTES / 2


class TestCollateral:
    LOST = "Connection closed by peer [10.0.0.1]:29500"

    def seconds(self, e: BaseException, time_ns: int) -> int:
        parsed = json.loads(record(e, time_ns).content)
        assert parsed["firstfault"]["time_ns"] == time_ns
        compact = json.loads(record(e, time_ns).compact)
        extra = compact["message"]["extraInfo"]
        assert extra["timestamp"] == parsed["message"]["extraInfo"]["timestamp"]
        return int(extra["timestamp"])

    def test_is_rounded_up_for_torch(self) -> None:
        lost = RuntimeError(self.LOST)
        assert self.seconds(lost, 1700000000_000000001) == 1700000001
        assert self.seconds(lost, 1700000000_999999999) == 1700000001
        assert self.seconds(lost, 1700000000_000000000) == 1700000000
        assert self.seconds(ValueError("bug"), 1700000000_999999999) == 1700000000

    def test_the_deepest_cause_decides(self) -> None:
        def collateral(e: BaseException) -> bool:
            return is_collateral(e, chain_of(e)[0], _native.is_collateral)

        lost, bug = RuntimeError(self.LOST), ValueError("bug")
        assert collateral(chained(RuntimeError(self.LOST), ValueError("wrapped")))
        assert not collateral(chained(bug, RuntimeError(self.LOST)))
        assert collateral(ExceptionGroup("g", [lost, lost]))
        assert not collateral(ExceptionGroup("g", [lost, bug]))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (None, 0),
        (0, 0),
        (1, 1),
        (256, 0),
        (257, 1),
        (-1, 255),
        (2**63, 255),
        (-(2**63), 0),
        (True, 1),
        ("", 1),
        (0.0, 1),
        ([], 1),
    ],
)
def test_knows_the_exit_status(code: object, status: int) -> None:
    assert exit_status(SystemExit(code)) == status


def test_the_plain_callstack_has_every_frame() -> None:
    error = many_frames()
    text = plain_callstack(error)
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert "frames cut]" in text
    assert text.endswith("\nRecursionError: maximum recursion depth exceeded\n")
    assert len(text) < 64 * 1024
    truncated: dict[str, int] = {}
    assert "repeated" in callstack(error, truncated) or truncated


def test_describes_without_touching() -> None:
    error = ValueError("x")
    before = dict(error.__dict__)
    describe(error, {})
    headline(error)
    assert error.__dict__ == before
