"""Tokens one by one: the bytes each stands for, and how a response names it."""

from functools import cached_property, lru_cache

from tokenizers import pre_tokenizers

from flare.contract.vocabulary import Vocabulary

SPACE = "▁"  # a blank in vocabularies without byte-level spelling


class Spelling:
    """The spelling of a vocabulary's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._byte_ids = vocabulary.byte_ids
        self.text = lru_cache(maxsize=65536)(self._text)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; control tokens and ids without a token by name."""
        name = self._tokenizer.id_to_token(token)
        if name is None:
            return f"<|{token}|>".encode()
        if token in self._byte_ids:
            return bytes([int(name[3:5], 16)])
        if token not in self._whole and self._byte_level and all(character in _BYTES for character in name):
            return bytes(_BYTES[character] for character in name)
        return name.replace(SPACE, " ").encode()

    def _text(self, token: int) -> str:
        """A token's text; where it is no UTF-8 by itself, its bytes as OpenAI writes them."""
        spelled = self.bytes_of(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    @cached_property
    def _whole(self) -> frozenset[int]:
        """Tokens that are found as they are written."""
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in str(self._tokenizer.decoder)


def _stand_ins() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte: itself where it is printable, else the next character from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _stand_ins()
assert set(_BYTES) == set(pre_tokenizers.ByteLevel.alphabet())
