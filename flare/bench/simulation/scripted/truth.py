"""The truth: which token follows a prefix, decided by a hash of the whole prefix.

A prefix is a hash that grows token by token, so a wrong token, a lost page or a foreign snapshot changes everything
that follows. Streams still repeat themselves, as text does: mostly they walk along short cycles of words, now and then
they slip to another one, so copies are found and often accepted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

CYCLE = 8  # words of one cycle: what a suffix of eight tokens finds again


def extended(prefix: int, token: int) -> int:
    """The hash of a prefix with one token more; Python hashes tuples of integers alike in every process."""
    return hash((prefix, token))


@dataclass(frozen=True)
class Truth:
    """A scripted target and drafter.

    Attributes:
        seed: another seed is another model.
        words: ids 0..words − 1 have text; `words` ends a stream.
        slips: of 65,536 tokens so many leave their cycle.
        endings: of 1,024 tokens so many are the end-of-text id.
        agreement: of 256 learned drafts at each depth so many are what the target says; its length is the most drafts.
    """

    seed: int
    words: int = 96
    slips: int = 5000
    endings: int = 6
    agreement: tuple[int, ...] = (220, 210, 200, 180, 160, 140, 120)

    @property
    def eos(self) -> int:
        """The end-of-text id."""
        return self.words

    @property
    def vocab(self) -> int:
        """Ids, those without text included."""
        return self.words + 32

    @property
    def empty(self) -> int:
        """The hash of the prefix without tokens."""
        return hash((self.seed, self.words, CYCLE))

    def chain(self, tokens: Sequence[int]) -> list[int]:
        """Hashes of all prefixes, the empty one first."""
        return self.chain_after(self.empty, tokens)

    def chain_after(self, prefix: int, tokens: Sequence[int]) -> list[int]:
        """Hashes of a prefix and of what each further token makes of it."""
        hashes = [prefix]
        for token in tokens:
            prefix = hash((prefix, token))
            hashes.append(prefix)
        return hashes

    def next(self, prefix: int, last: int) -> int:
        """The token after a prefix that ends with `last`."""
        if (prefix & 0xFFFF) < self.slips:
            return (prefix >> 16) % self.words
        if (prefix >> 36 & 0x3FF) < self.endings:
            return self.words
        last %= self.words
        return last - last % CYCLE + (last + 1) % CYCLE

    def allowed(self, prefix: int, last: int, banned: Collection[int]) -> int:
        """The token after a prefix where some ids are impossible."""
        token = self.next(prefix, last)
        while token in banned:
            token = (token + 1) % self.vocab
        return token

    def proposal(self, prefix: int, last: int, depth: int) -> list[int]:
        """The learned drafter's tokens: each after its own earlier ones, right as often as `agreement` says."""
        drafts: list[int] = []
        for right in self.agreement[:depth]:
            token = self.next(prefix, last)
            if (prefix >> 24 & 0xFF) >= right:
                token = (token + 1) % self.words
            drafts.append(token)
            prefix, last = hash((prefix, token)), token
        return drafts + [0] * (depth - len(drafts))
