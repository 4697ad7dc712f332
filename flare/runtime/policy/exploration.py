"""Exploration: other widths than the best one, paid from a share of the time that choosing well has saved.

Without it a width that once looked bad would never be seen again, nor one that a few early rounds mispriced. It changes
which round runs, never an estimate.
"""

from flare.runtime.policy.choice import Option

SPACING_ROUNDS = 12  # at least this many choices lie between two probes, and twice as many after each vain one
MOST_SPACING_ROUNDS = 96  # so that a change for the better is noticed within as many rounds
RESERVE_ROUNDS = 3.0  # what a good time saved does not pay for more than this many rounds of a bad one
FIRST_DOUBT = 0.2  # how far the rate of a width that never ran may be off; it shrinks with the root of its rounds
DECLINED_SHARE = 0.25  # a declined wide round counts as at most this part of the round that ran instead


class Exploration:
    """A purse of seconds: filled by savings, emptied by probes.

    Attributes:
        budget_seconds: what is in it; spent_seconds: what all probes so far were expected to cost.
    """

    def __init__(self, share: float) -> None:
        """Share: part of the saved time that may be spent, 0 for none."""
        self._share = share
        self._since_probe = 0
        self._spacing = SPACING_ROUNDS
        self._probed_from: int | None = None  # the best width when the last probe ran
        self.budget_seconds = 0.0
        self.spent_seconds = 0.0

    def settle(self, saved_seconds: float, round_seconds: float) -> None:
        """Book what one round saved over plain decoding; a loss takes back its share."""
        limit = RESERVE_ROUNDS * round_seconds
        booked = min(self.budget_seconds + self._share * saved_seconds, max(limit, self.budget_seconds))
        self.budget_seconds = max(0.0, booked)

    def probe(self, best: Option, others: list[Option]) -> Option | None:
        """The most promising other option if the purse pays for it, else None; few measured rounds promise more.

        A probe's price is the time it takes beyond what the best option needs for the same tokens. Declining it under
        width one saves that price too, so plain decoding funds a rare second look.
        """
        self._since_probe += 1
        if self._probed_from not in (None, best.width):
            self._spacing, self._probed_from = SPACING_ROUNDS, None  # the last probe taught something, or times changed
        if not others or not self._share:
            return None
        option = max(others, key=lambda other: other.rate * (1.0 + FIRST_DOUBT / (1 + other.measured) ** 0.5))
        price = option.seconds - option.emitted / best.rate
        if self._since_probe >= self._spacing and price <= self.budget_seconds:
            self.budget_seconds -= price
            self.spent_seconds += price
            self._since_probe = 0
            if self._probed_from is not None:
                self._spacing = min(2 * self._spacing, MOST_SPACING_ROUNDS)
            self._probed_from = best.width
            return option
        if best.width == 1:
            self.settle(min(price, DECLINED_SHARE * best.seconds), best.seconds)
        return None
