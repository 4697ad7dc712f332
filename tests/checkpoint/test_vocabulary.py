"""Token ids equal outside implementations; streamed text equals decoded text, character by character."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from flare.checkpoint.gguf import GgufCheckpoint
from flare.contract.vocabulary import Vocabulary
from flare.errors import RequestError
from tests.checkpoint.tiny import TEMPLATE, tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/smollm2/tokens.json").read_text(encoding="utf-8"))
TINY = Vocabulary(tokenizer(), eos_ids=(2, 0), bos_id=1, chat_template=TEMPLATE)
BROKEN = "\ufffd"


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf):
    return GgufCheckpoint(smollm2_gguf).vocabulary()


def streamed(vocabulary: Vocabulary, ids: list[int]) -> tuple[list[str], str]:
    stream = vocabulary.stream()
    return [stream.push(id) for id in ids], stream.flush()


def byte_fallback() -> Vocabulary:
    """A vocabulary in the manner of SentencePiece: 256 byte tokens, then three words."""
    words = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁hi": 256, "a": 257, "<unk>": 258}
    built = Tokenizer(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    built.decoder = decoders.Sequence(steps)
    return Vocabulary(built, eos_ids=())


FALLBACK = byte_fallback()


@pytest.mark.parametrize("case", GOLDEN["strings"], ids=lambda case: ascii(case["text"])[:30])
def test_encoding_equals_llama_cpp_and_transformers(smollm2, case):
    assert smollm2.encode(case["text"]) == case["ids"]


@pytest.mark.parametrize("case", GOLDEN["chats"], ids=lambda case: f"{len(case['messages'])} messages")
def test_chats_equal_transformers(smollm2, case):
    assert smollm2.render(case["messages"]) == case["text"]
    assert smollm2.chat(case["messages"]) == case["ids"]


def test_what_the_file_says_about_its_use(smollm2):
    assert smollm2.size == 49152
    assert smollm2.eos_ids == (2, 0)
    assert (smollm2.bos_id, smollm2.add_bos) == (1, False)


def test_decoding_skips_control_tokens(smollm2):
    ids = smollm2.encode("<|im_start|>a 🌊<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm2.decode(ids) == "a 🌊"


def test_a_begin_token_is_added_to_plain_text_only_where_asked():
    asked = Vocabulary(tokenizer(), eos_ids=(2,), bos_id=1, add_bos=True, chat_template=TEMPLATE)
    assert asked.encode("he") == [1, *TINY.encode("he")]
    assert asked.chat([{"role": "user", "content": "he"}]) == TINY.chat([{"role": "user", "content": "he"}])


@pytest.mark.parametrize("case", GOLDEN["strings"], ids=lambda case: ascii(case["text"])[:30])
def test_streamed_text_has_no_broken_characters(smollm2, case):
    pieces, rest = streamed(smollm2, case["ids"])
    assert "".join(pieces) == smollm2.decode(case["ids"])
    assert rest == ""
    assert BROKEN not in "".join(pieces)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, TINY.size - 1), max_size=40))
def test_streamed_text_is_the_decoded_text_for_any_ids(ids):
    pieces, rest = streamed(TINY, ids)
    assert "".join(pieces) + rest == TINY.decode(ids)
    assert not any(piece.endswith(BROKEN) for piece in pieces)


@settings(deadline=None)
@given(text=st.text(max_size=30), cut=st.integers(0, 100))
def test_text_that_stops_inside_a_character_streams_only_whole_ones(text, cut):
    ids = TINY.encode(text)[:cut]
    pieces, rest = streamed(TINY, ids)
    assert "".join(pieces) + rest == TINY.decode(ids)
    assert text.startswith("".join(pieces))


@settings(deadline=None)
@given(ids=st.lists(st.one_of(st.sampled_from([0xE4, 0xBD, 0xA0, 0xFF, 0x0A]), st.integers(0, 257)), max_size=20))
def test_streaming_is_exact_for_byte_fallback_too(ids):
    pieces, rest = streamed(FALLBACK, ids)
    assert "".join(pieces) + rest == FALLBACK.decode(ids)


def test_a_second_flush_adds_nothing():
    stream = TINY.stream()
    for id in TINY.encode("é")[:1]:
        stream.push(id)
    assert stream.flush() == BROKEN
    assert stream.flush() == ""


@pytest.mark.parametrize(
    ("messages", "cause"),
    [([], "at least one message"), ([{"role": "user"}], "'content', but it is missing"),
     ([{"role": "user", "content": 3}], "it is int"), (["hi"], "must be an object"),
     ([{"role": "user", "content": None}], "it is NoneType")],
)  # fmt: skip
def test_bad_messages_are_refused_in_one_sentence(messages, cause):
    with pytest.raises(RequestError, match=cause):
        TINY.chat(messages)


def test_a_model_without_template_cannot_chat():
    with pytest.raises(RequestError, match="no chat template"):
        Vocabulary(tokenizer(), eos_ids=()).chat([{"role": "user", "content": "hi"}])


def rendered(template: str) -> str:
    return Vocabulary(tokenizer(), (2,), 1, False, template).render([{"role": "user", "content": "<hi> é"}])


def test_templates_have_what_hugging_face_gives_them():
    assert (
        rendered("  {% for m in messages %}\n{{ m | tojson }}\n  {% endfor %}\n")
        == '{"role": "user", "content": "<hi> é"}\n'
    )
    assert rendered("{{ bos_token }}{{ eos_token }}{{ tools is none }}") == "<|im_start|><|im_end|>True"
    assert len(rendered("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert rendered("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "<hi> é"
    assert rendered("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"


@pytest.mark.parametrize(
    ("template", "cause"),
    [("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% if %}", "not valid Jinja"),
     ("{{ messages.append(1) }}", "refuses"), ("{{ ''.__class__.__mro__ }}", "refuses")],
)  # fmt: skip
def test_a_template_cannot_do_harm_and_its_complaints_reach_the_user(template, cause):
    with pytest.raises(RequestError, match=cause):
        rendered(template)


@pytest.mark.parametrize("text", ["\ud800", "bytes \udcff that were no UTF-8"])
def test_text_that_is_not_unicode_is_refused(text):
    for ask in (lambda: TINY.encode(text), lambda: TINY.chat([{"role": "user", "content": text}])):
        with pytest.raises(RequestError, match="not Unicode"):
            ask()
