"""The vocabulary inside a GGUF file, rebuilt as a `tokenizers` byte-level BPE.

Source: `tokenizer.ggml.*` of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the splits are those of the
tokenizer.json files that the names in `tokenizer.ggml.pre` stand for.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from flare.contract.vocabulary import Vocabulary
from flare.errors import CheckpointError

PREFIX: Final = "tokenizer.ggml."
# Control tokens that end a turn or a document in every family that has them.
ENDINGS: Final = ("<|im_end|>", "<|endoftext|>")


def byte_level() -> pre_tokenizers.PreTokenizer:
    """GPT-2's split into words, each spelt in printable stand-ins for bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def single_digits() -> pre_tokenizers.PreTokenizer:
    """Every digit apart from its neighbours, then as GPT-2."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])


SPLITS: Final[dict[str, Callable[[], pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": byte_level,
    "smollm": single_digits,
}


def vocabulary_of(values: Mapping[str, Any], origin: str) -> Vocabulary:
    """Build the vocabulary from the key-value pairs of a GGUF header.

    Raises:
        CheckpointError: the file has no tokenizer, or one that cannot be rebuilt exactly.
    """
    kind, split = values.get(PREFIX + "model"), values.get(PREFIX + "pre")
    if kind is None:
        raise CheckpointError(f"{origin} holds no tokenizer: use a GGUF file that has one, or a Hugging Face folder.")
    if kind != "gpt2" or split not in SPLITS:
        raise CheckpointError(
            f"{origin} has a tokenizer of kind {kind}/{split}, which cannot be rebuilt exactly "
            f"(can: {', '.join(f'gpt2/{name}' for name in SPLITS)}): use the Hugging Face folder of this model."
        )
    tokens, merges = required(values, "tokens", origin), required(values, "merges", origin)
    types = required(values, "token_type", origin)
    if len(types) != len(tokens):
        raise CheckpointError(f"{origin} is damaged: {len(tokens):,} tokens, but types for {len(types):,}.")
    tokenizer = byte_pair_tokenizer(tokens, merges)
    tokenizer.pre_tokenizer = SPLITS[split]()
    add_whole_tokens(tokenizer, tokens, types)
    control = {
        token: id for id, (token, type) in enumerate(zip(tokens, types, strict=True)) if type == TokenType.CONTROL
    }
    named = [values.get(PREFIX + key) for key in ("eos_token_id", "eot_token_id")]
    return Vocabulary(
        tokenizer,
        eos_ids=ending_ids(named, control),
        bos_id=values.get(PREFIX + "bos_token_id"),
        add_bos=values.get(PREFIX + "add_bos_token", False),
        chat_template=values.get("tokenizer.chat_template"),
    )


def ending_ids(named: list[int | None], control: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that end a response: those the checkpoint names, then the well-known control tokens it has; each once."""
    known = [control.get(token) for token in ENDINGS]
    return tuple(dict.fromkeys(id for id in (*named, *known) if id is not None))


def byte_pair_tokenizer(tokens: list[str], merges: list[str]) -> Tokenizer:
    """Byte-level BPE over the given ids; merges are "left right" in order of rank."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, pairs))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Mark tokens that are found before BPE: control ones are skipped when decoding, user-defined ones are text."""
    for token, type in zip(tokens, types, strict=True):
        if type == TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif type == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def required(values: Mapping[str, Any], key: str, origin: str) -> list[Any]:
    """A list of the tokenizer."""
    if not isinstance(values.get(PREFIX + key), list):
        raise CheckpointError(f"{origin} is damaged: its tokenizer has no {PREFIX}{key}.")
    return values[PREFIX + key]
