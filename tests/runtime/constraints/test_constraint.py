"""Rows, drafts and ends under a grammar: each row's mask is that of one-token decoding after the drafts before it."""

import numpy as np
import pytest

from flare.errors import RequestError
from flare.runtime.constraints import AfterMarker, Constraint, Grammars
from tests.runtime.constraints.words import (
    DIGITS,
    END,
    EVERYTHING,
    OTHER_END,
    SHARED,
    THINK,
    VOCAB,
    constraint,
    ids,
    masks,
    wish,
)

ENDS = {END, OTHER_END}


def offer(following: Constraint, copied: str | bytes | list[int], limit: int = 7) -> tuple[list[int], int]:
    tokens = list(copied.encode()) if isinstance(copied, str) else list(copied)
    return following.drafts(tokens, limit), following.copied_drafts


def emit(following: Constraint, text: str, ended: bool = False) -> int:
    tokens = [*text.encode(), *([END] if ended else [])]
    return following.commit(tokens, ended)


def test_a_copy_is_cut_at_its_first_illegal_token_and_the_third_row_is_corrected_to_a_digit():
    following = constraint(regex="[0-9]{3}x")
    drafts, copied = offer(following, "12z")
    assert (bytes(drafts), copied) == (b"12", 2)
    assert masks(following, drafts) == [DIGITS, DIGITS, DIGITS]
    assert emit(following, "127") == 3  # both accepted, the bonus row gave a digit
    assert following.generated_tokens == 3
    assert masks(following) == [ids("x")]


def test_tentative_rows_never_move_the_matcher():
    following = constraint(regex="[0-9]{3}x")
    for copied in ("12z", "999x", "", "abc"):
        drafts, _ = offer(following, copied)
        masks(following, drafts)
        assert masks(following) == [DIGITS] and following.generated_tokens == 0


def test_every_row_has_the_mask_of_its_own_prefix():
    following = constraint(regex="a[0-9]b?c")
    rows = masks(following, list(b"a7bc"))
    assert rows == [ids("a"), DIGITS, ids("bc"), ids("c"), ENDS]


def test_rejected_drafts_leave_no_trace():
    following = constraint(regex="[0-9]{3}x")
    drafts, _ = offer(following, "123")
    masks(following, drafts)
    assert emit(following, "17") == 2  # the second draft was rejected
    assert masks(following, list(b"8")) == [DIGITS, ids("x")]


def test_forced_tokens_follow_a_legal_copy_and_the_end_follows_them():
    following = constraint(regex='(true|null), "value"')
    drafts, copied = offer(following, "tr", limit=20)
    assert (bytes(drafts[:-1]), drafts[-1], copied) == (b'true, "value"', END, 2)
    drafts, copied = offer(following, "", limit=20)
    assert (drafts, copied) == ([], 0)  # either word may come
    assert offer(following, "tr", limit=4)[0] == list(b"true")


def test_an_end_is_allowed_exactly_where_the_text_is_whole():
    following = constraint(regex="ab*")
    assert masks(following, list(b"ab")) == [ids("a"), ids("b") | ENDS, ids("b") | ENDS]


def test_a_copied_end_is_offered_where_the_text_may_end_and_nowhere_else():
    following = constraint(regex="ab*")
    assert offer(following, [*b"abb", END, 7]) == ([*b"abb", END], 4)
    assert offer(following, [END]) == ([ord("a")], 0)
    assert masks(following, [*b"a", END])[2] == EVERYTHING  # nothing follows an accepted end


def test_the_end_is_counted_once_and_never_consumed():
    following = constraint(regex="[0-9]+")
    assert emit(following, "42", ended=True) == 3
    assert following.generated_tokens == 3 and not following.finished
    assert masks(following)[0] == DIGITS | ENDS  # the matcher stands behind the text


def test_without_an_end_id_the_host_ends_the_request_and_drops_what_was_drawn_behind():
    following = constraint(regex="[0-9]{2}", ends=())
    assert offer(following, "12") == ([*b"12"], 2)
    assert masks(following, list(b"12")) == [DIGITS, DIGITS, EVERYTHING]
    assert emit(following, "12!") == 2
    assert following.finished and following.generated_tokens == 2


def test_without_an_end_id_a_text_that_can_go_on_goes_on():
    following = constraint(regex="ab*", ends=())
    assert masks(following, list(b"a")) == [ids("a"), ids("b")]
    assert emit(following, "ab") == 2 and not following.finished


def test_a_grammar_that_ends_before_min_tokens_ends_the_request():
    following = constraint(regex="[0-9]{2}", min_tokens=5)
    assert masks(following, list(b"12"))[2] == EVERYTHING
    assert emit(following, "12") == 2 and following.finished


def test_min_tokens_keep_the_end_out_of_rows_before_them():
    following = constraint(regex="ab*", min_tokens=2)
    assert masks(following, list(b"abb")) == [ids("a"), ids("b"), ids("b") | ENDS, ids("b") | ENDS]
    assert offer(following, [*b"a", END])[0] == list(b"a")


def test_stop_ids_of_the_request_end_it_only_where_the_text_is_whole():
    following = constraint(regex="ab*", ends=(END, 299))
    assert masks(following, list(b"a")) == [ids("a"), ids("b") | {END, 299}]


def test_a_token_that_its_mask_forbade_is_a_bug():
    following = constraint(regex="[0-9]{3}x")
    with pytest.raises(RuntimeError, match="forbade"):
        emit(following, "1x")


def test_two_requests_of_one_grammar_are_independent():
    first, second = constraint(regex="[0-9]{3}x"), constraint(regex="[0-9]{3}x")
    emit(first, "123")
    assert masks(first) == [ids("x")] and masks(second) == [DIGITS]


@pytest.mark.parametrize("block", ["so</think>7", "</think>7", "a</th"])
def test_a_marker_switches_the_grammar_on_inside_a_block(block):
    following = Constraint(AfterMarker(SHARED.matcher(wish(regex="[0-9]{2}")), b"</think>", SHARED.spelling), (END,))
    tokens = list(block.encode())
    drafts, _ = offer(following, block, limit=14)
    assert drafts == tokens
    cut = block.find("</think>")
    on = len(tokens) + 1 if cut < 0 else cut + len("</think>")
    expected = [EVERYTHING if row < on else DIGITS for row in range(len(tokens) + 1)]
    assert masks(following, tokens) == expected


def test_a_copy_that_breaks_the_grammar_behind_the_marker_is_cut_there():
    following = Constraint(AfterMarker(SHARED.matcher(wish(regex="[0-9]{2}")), b"</think>", SHARED.spelling), (END,))
    assert offer(following, "x</think>4!", limit=14)[0] == list(b"x</think>4")
    assert following.commit(list(b"x</thi"), ended=False) == 6
    assert offer(following, "nk>!", limit=14)[0] == list(b"nk>")
    assert following.commit(list(b"nk>5"), ended=False) == 4
    assert masks(following) == [DIGITS]


def test_a_marker_may_be_one_control_token():
    following = Constraint(AfterMarker(SHARED.matcher(wish(regex="ok")), b"</think>", SHARED.spelling), (END,))
    assert offer(following, [7, THINK, *b"ok"], limit=14) == ([7, THINK, *b"ok", END], 4)
    assert masks(following, [7, THINK]) == [EVERYTHING, EVERYTHING, ids("o")]


def test_thinking_may_end_the_request_before_the_marker():
    following = Constraint(AfterMarker(SHARED.matcher(wish(regex="ok")), b"</think>", SHARED.spelling), (END,))
    assert following.commit([*b"hm", END], ended=True) == 3 and following.generated_tokens == 3


@pytest.mark.parametrize(
    ("fields", "explained"),
    [
        ({"regex": "a(b"}, "sampling.regex cannot be followed: unclosed group."),
        ({"regex": "(?=a)b"}, "sampling.regex cannot be followed: look-around"),
        ({"grammar": "start: nothing"}, "sampling.grammar cannot be followed: "),
        ({"grammar": 'x: "a"'}, "sampling.grammar cannot be followed: no start rule found."),
        ({"json_schema": {"type": "thing"}}, "sampling.json_schema cannot be followed: Invalid type: thing."),
        ({"json_schema": '{"type": "array", "uniqueItems": true}'}, "sampling.json_schema cannot be followed: Unimpl"),
        ({"json_schema": False}, "sampling.json_schema cannot be followed: Unsatisfiable"),
        ({"json_schema": "{no json"}, "sampling.json_schema is not JSON: "),
        ({"json_schema": "[1]"}, "sampling.json_schema must be a JSON schema"),
        ({"json_schema": {"const": float("nan")}}, "sampling.json_schema cannot be written as JSON"),
        ({"json_schema": "[" * 100_000}, "sampling.json_schema "),
        ({"regex": "\ud800"}, "sampling.regex cannot be followed: "),
        ({"regex": "a", "grammar": "b"}, "sampling.grammar and sampling.regex exclude each other"),
    ],
)
def test_an_unsupported_grammar_is_one_sentence(fields, explained):
    with pytest.raises(RequestError) as refused:
        SHARED.matcher(wish(**fields))
    sentence = str(refused.value)
    assert sentence.startswith(explained) and "\n" not in sentence and sentence.endswith(".")


def test_a_vocabulary_without_an_end_refuses_grammars():
    from types import SimpleNamespace

    with pytest.raises(RequestError, match="end-of-text"):
        Grammars(SimpleNamespace(eos_ids=(), tokenizer_json=""), VOCAB).matcher(wish(regex="a"))


def test_a_missing_library_is_one_sentence(monkeypatch):
    from tests.runtime.constraints.words import grammars

    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install 'flare\[constraints\]'"):
        grammars().matcher(wish(regex="a"))


def test_a_matcher_that_meets_its_limits_fails_the_request_and_nothing_else():
    following = constraint(regex="[0-9]{3}x")

    class Spent:
        """The matcher after a resource limit: it allows nothing and says why."""

        fault, may_end, at_end = "the lexer is too complex", False, False

        def copy(self):
            return self

        def legal(self, tokens):
            return 0

        def forced(self):
            return []

        def consume(self, tokens):
            assert not tokens

        def allow(self, row):
            row[:] = 0

    spent = Constraint(Spent(), (END,))  # pyright: ignore[reportArgumentType]
    rows = np.zeros((1, 10), np.int32)
    spent.mask(rows)
    assert (rows == -1).all()  # the device must find mass somewhere
    assert spent.commit([3], ended=False) == 1 and spent.fault == "the lexer is too complex"
    assert masks(following) == [DIGITS]


def test_a_matcher_that_gives_up_behind_a_legal_token_fails_the_request():
    class GivesUp:
        """Every token is legal; the state behind the first one is more than it holds."""

        fault: str | None = None
        may_end = at_end = False

        def legal(self, tokens):
            return len(tokens)

        def consume(self, tokens):
            self.fault = "too many items"

    followed = Constraint(GivesUp(), (END,))  # pyright: ignore[reportArgumentType]
    assert followed.commit([3], ended=False) == 1
    assert followed.fault == "too many items"


def test_a_schema_beyond_the_librarys_limits_is_one_fault_and_no_crash():
    properties = {f"k{index}": {"type": "string"} for index in range(3000)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    try:
        followed = constraint(json_schema=schema)
    except RequestError:
        return  # refused before it ran: better still
    rows = np.zeros((1, 10), np.int32)
    for token in following_tokens(followed, rows):
        followed.commit([token], ended=False)
        if followed.fault is not None:
            return
    raise AssertionError("the limits were never met")


def following_tokens(followed, rows):
    """One allowed token after the other, a few of them."""
    for _ in range(6):
        followed.mask(rows)
        bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
        yield int(np.flatnonzero(bits)[0])
