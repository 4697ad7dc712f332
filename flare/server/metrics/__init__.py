"""Prometheus metrics: what is counted, what is read from the engine, and how both are exposed."""

from flare.server.metrics.reading import PolicyReading, Reading, reading_of
from flare.server.metrics.route import router
from flare.server.metrics.tally import Tally

__all__ = ["PolicyReading", "Reading", "Tally", "reading_of", "router"]
