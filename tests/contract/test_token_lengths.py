"""The least number of tokens of a text: never more than it has, and absent where nothing is certain."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from flare.contract.token_lengths import TokenLengths, token_lengths
from flare.contract.vocabulary import Vocabulary

MERGES = [("a", "a"), ("aa", "aa"), ("Ġ", "Ġ"), ("Ã", "©")]


def byte_level(missing: str = "") -> Tokenizer:
    """Bytes, a few merges up to four characters, without a token for some bytes."""
    tokens = [*sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(missing)), *map("".join, MERGES)]
    built = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, MERGES))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    return built


def lengths(built: Tokenizer) -> TokenLengths | None:
    return token_lengths(built.to_str())


def test_the_longest_token_counts_in_bytes():
    assert lengths(byte_level()) == TokenLengths(4)


def test_added_tokens_count():
    built = byte_level()
    built.add_special_tokens([AddedToken("<|é|>" * 3, normalized=False)])
    assert lengths(built) == TokenLengths(18)


def test_bytes_without_a_token_do_not_count():
    built = byte_level(missing="b")
    found = lengths(built)
    assert found is not None and found == TokenLengths(4, b"b")
    assert found.least_tokens("b" * 1000) == 0 == len(built.encode("b" * 1000).ids)
    assert found.least_tokens("a" * 5 + "b" * 1000) == 2


def stripping(built: Tokenizer) -> None:
    built.add_tokens([AddedToken("<x>", rstrip=True)])


def lowering(built: Tokenizer) -> None:
    built.normalizer = normalizers.Lowercase()


def shortening(built: Tokenizer) -> None:
    built.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace("aaaa", "b")])


def dropping(built: Tokenizer) -> None:
    built.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])


def removing(built: Tokenizer) -> None:
    split = pre_tokenizers.Split(" ", "removed")
    built.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])


@pytest.mark.parametrize("change", [stripping, lowering, shortening, dropping, removing])
def test_what_may_shrink_a_text_leaves_nothing_certain(change):
    built = byte_level()
    change(built)
    assert lengths(built) is None
    assert Vocabulary(built, eos_ids=()).least_tokens("a" * 10_000) == 0


def test_words_that_one_unknown_token_answers_leave_nothing_certain():
    assert lengths(Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))) is None
    assert lengths(Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True))) is None


def test_a_vocabulary_that_falls_back_to_bytes_has_a_bound():
    tokens = ["▁", "▁▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    built = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, [("▁", "▁")], byte_fallback=True))
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    assert lengths(built) == TokenLengths(6)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("aab \né\u0301e\u1fbe\u0308Ω\u212a한\u1112\u1161\u11ab")), composed=st.booleans())
def test_the_bound_never_exceeds_what_encoding_gives(text, composed):
    built = byte_level()
    if composed:
        built.normalizer = normalizers.NFC()
    vocabulary = Vocabulary(built, eos_ids=())
    assert vocabulary.least_tokens(text) <= len(vocabulary.encode_rendered(text))


def test_the_smallest_composition_stays_within_the_factor():
    built = byte_level()
    built.normalizer = normalizers.NFC()
    text = "\u1fbe\u0308\u0301" * 50
    assert json.loads(built.to_str())["normalizer"] == {"type": "NFC"}
    assert Vocabulary(built, eos_ids=()).least_tokens(text) <= len(built.encode(text).ids)
