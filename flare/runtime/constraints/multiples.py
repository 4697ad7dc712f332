"""What `multipleOf` costs: the grammar library walks the remainders of such a number, beyond all limits of its own.

On one core 430 thousand remainders take half a second, 1.4 million take 11 s and half a GiB, 4.3 million 100 s. Powers
of ten are read off the last digits and cost nothing.
"""

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from math import lcm

from flare.errors import RequestError
from flare.runtime.constraints.wishes import Wish

MOST_REMAINDERS = 500_000
DIGITS = 20
ENDLESS = 10**DIGITS  # numbers beyond it are not written out
WRITTEN = re.compile(r'"multipleOf"\s*:\s*([0-9.eE+-]+)')
MEET = re.compile(r'"(?:allOf|anyOf|oneOf|\$ref)"')  # by which a number may have to be a multiple of several


def check_multiples(wish: Wish) -> None:
    """Raise RequestError for schemas, those inside a Lark grammar too, whose multiples have too many remainders."""
    if wish.kind == "regex":
        return
    counts = {written: _remainders(written) for written in WRITTEN.findall(wish.text)}
    said = next((f"multipleOf={written[:80]} is" for written, count in counts.items() if _takes_long(count)), None)
    if said is None and MEET.search(wish.text) and _takes_long(_together(counts.values())):
        said = "its values of multipleOf are together"
    if said is not None:
        raise RequestError(
            f"sampling.{wish.field} cannot be followed: {said} too large, "
            f"at most {MOST_REMAINDERS} is supported, without the decimal point."
        )


def _takes_long(remainders: int) -> bool:
    return remainders > MOST_REMAINDERS and str(remainders).strip("0") != "1"


def _together(counts: Iterable[int]) -> int:
    """Their least common multiple, or some number beyond `ENDLESS`."""
    common = 1
    for count in counts:
        common = lcm(common, count)
        if common > ENDLESS:
            break
    return common


def _remainders(written: str) -> int:
    """The number without its decimal point; 1 for what is none, of which the library says so."""
    try:
        number = Decimal(written)
    except InvalidOperation:
        return 1
    if number.adjusted() > DIGITS:
        return ENDLESS + 1
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int)  # written in digits, so neither infinite nor undefined
    return max(1, int("".join(map(str, digits))) * 10 ** max(0, exponent))
