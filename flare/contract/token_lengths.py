"""How much text one token can hold: a bound from which a text's least number of tokens follows without encoding it.

A bound is only given where it is certain: byte-pair models behind normalizers that shrink no text by more than a known
factor and splits that drop nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Canonical composition shortens at most 7 bytes to 2 (U+1FBE U+0308 U+0301 to U+0390): a factor of 4 covers it.
SHRINKS: Final = {"NFC": 4, "NFD": 4, "Prepend": 1, "ByteLevel": 1}
KEEPING: Final = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "UnicodeScripts", "Split")
# Stand-ins of byte-level vocabularies: printable bytes are themselves, the others count up from 256.
PRINTABLE: Final = (*range(33, 127), *range(161, 173), *range(174, 256))
STANDS_FOR: Final = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}


@dataclass(frozen=True)
class TokenLengths:
    """The bound of one tokenizer.

    Attributes:
        longest_bytes: most UTF-8 bytes of a text that one token stands for, added tokens included.
        unspelled: bytes the vocabulary has no token for; they need not show in the tokens of a text.
    """

    longest_bytes: int
    unspelled: bytes = b""

    def least_tokens(self, text: str) -> int:
        """Tokens that the text has at the very least."""
        spelled = text.encode(errors="surrogatepass").translate(None, self.unspelled)
        return -(-len(spelled) // self.longest_bytes)


def token_lengths(tokenizer_json: str) -> TokenLengths | None:
    """The bound of a tokenizer; None where none is certain.

    Args:
        tokenizer_json: the whole tokenizer in the format of tokenizer.json.
    """
    document = json.loads(tokenizer_json)
    shrink = _shrink(document.get("normalizer"))
    added = document.get("added_tokens") or []
    strips = any(token.get("lstrip") or token.get("rstrip") for token in added)  # such a token swallows any white space
    splits = _parts(document.get("pre_tokenizer"), "pretokenizers")
    model = document["model"]
    # Models of another type answer a long word, or what they do not know, with a single token.
    if shrink is None or strips or not all(map(_keeps, splits)) or model["type"] != "BPE":
        return None
    # A byte-level token has one character a byte. Any other token is its text, or longer where a space is written ▁.
    if any(part["type"] == "ByteLevel" for part in splits):
        unspelled = bytes(byte for character, byte in STANDS_FOR.items() if character not in model["vocab"])
        if unspelled and shrink > 1:  # which of its bytes the shrunk text has left is unknown
            return None
        longest = max(map(len, model["vocab"]), default=1)
    elif _falls_back(model):
        unspelled, longest = b"", max(len(token.encode()) for token in model["vocab"])
    else:
        return None
    named = max((len(token["content"].encode()) for token in added), default=1)
    return TokenLengths(shrink * max(longest, named), unspelled)


def _parts(part: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """A component, or the components of a sequence of them."""
    if part is None:
        return []
    return [leaf for each in part[inner] for leaf in _parts(each, inner)] if part["type"] == "Sequence" else [part]


def _shrink(normalizer: Mapping[str, Any] | None) -> int | None:
    """By which factor the normalizer shortens a text at most; None where nobody knows."""
    factor = 1
    for part in _parts(normalizer, "normalizers"):
        if part["type"] == "Replace":
            replaced = part["pattern"].get("String")
            if replaced is None or len(part["content"].encode()) < len(replaced.encode()):
                return None
        elif part["type"] in SHRINKS:
            factor *= SHRINKS[part["type"]]
        else:
            return None
    return factor


def _keeps(part: Mapping[str, Any]) -> bool:
    return part["type"] in KEEPING and part.get("behavior") != "Removed"


def _falls_back(model: Mapping[str, Any]) -> bool:
    return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
