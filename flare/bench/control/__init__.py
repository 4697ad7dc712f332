"""The width controller in simulated time: seeded settings, every fixed width on the same text, and the regret.

`python -m flare.bench.control` runs the real policy against cost tables it never sees: it learns costs from the rounds
it is charged for, as it does in service.
"""
