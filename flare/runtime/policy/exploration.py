"""Exploration: wider rounds than the best one, paid from a share of the time that choosing well has saved.

Without it a width that once looked bad would never be seen again. It changes which round runs, never an estimate.
"""

from flare.runtime.policy.choice import Option

SPACING_ROUNDS = 12  # at least this many choices lie between two probes
RESERVE_ROUNDS = 3.0  # what a good time saved does not pay for more than this many rounds of a bad one
DECLINED_SHARE = 0.25  # a declined wide round counts as at most this part of the round that ran instead


class Exploration:
    """A purse of seconds: filled by savings, emptied by probes."""

    def __init__(self, share: float) -> None:
        """Share: part of the saved time that may be spent, 0 for none."""
        self._share = share
        self._since_probe = 0
        self.budget_seconds = 0.0

    def settle(self, saved_seconds: float, round_seconds: float) -> None:
        """Book what one round saved over plain decoding; a loss takes back its share."""
        limit = RESERVE_ROUNDS * round_seconds
        booked = min(self.budget_seconds + self._share * saved_seconds, max(limit, self.budget_seconds))
        self.budget_seconds = max(0.0, booked)

    def probe(self, best: Option, wider: list[Option]) -> Option | None:
        """The most promising wider option if the purse pays for it, else None.

        A probe's price is the time it takes beyond what the best option needs for the same tokens. Declining it under
        width one saves that price too, so plain decoding funds a rare second look.
        """
        self._since_probe += 1
        if not wider or not self._share:
            return None
        option = max(wider, key=lambda candidate: candidate.rate)
        price = option.seconds - option.emitted / best.rate
        if self._since_probe >= SPACING_ROUNDS and price <= self.budget_seconds:
            self.budget_seconds -= price
            self._since_probe = 0
            return option
        if best.width == 1:
            self.settle(min(price, DECLINED_SHARE * best.seconds), best.seconds)
        return None
