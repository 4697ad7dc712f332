"""GET /flare/live: what the page draws, and any other dashboard may."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request

from flare.runtime.policy import Explanation
from flare.server.metrics import PolicyReading, Reading, Tally
from flare.server.metrics.reading import Reader
from flare.server.page.timeline import KEPT_SECONDS, Timeline
from flare.server.server import Server
from flare.server.wire.errors import ApiError, Code, refusals, shortened

MOST_DIGITS = 15
SINCE = {
    "name": "since",
    "in": "query",
    "description": "the first second to tell of, by index",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**MOST_DIGITS - 1, "default": 0},
}


def live_router(server: Server, tally: Tally, timeline: Timeline) -> APIRouter:
    """The route, for one server."""
    routes = APIRouter()
    reader = Reader(server)

    @routes.get("/flare/live", responses=refusals(400, 401), openapi_extra={"parameters": [SINCE]})
    async def live(request: Request) -> dict[str, Any]:
        """The state of the server, its totals, and its last minutes second by second."""
        since = _since(request.query_params.get("since", "0"))
        reading = await reader.read()
        model = server.model
        return {
            "version": version("flare"),
            "phase": server.phase,
            "model": model.name if model is not None else None,
            "depth": model.extent.width - 1 if model is not None else None,
            "context": model.extent.context if model is not None else None,
            "now": timeline.now,
            "kept_seconds": KEPT_SECONDS,
            "seconds": timeline.since(since),
            "totals": totals_of(tally),
            "engine": engine_of(reading) if reading is not None else None,
            "policy": policy_of(reading.policy) if reading is not None else None,
        }

    return routes


def _since(given: str) -> int:
    """Raise ApiError unless it is an index."""
    if not (given.isascii() and given.isdecimal() and len(given) <= MOST_DIGITS):
        message = f"since={shortened(given, 40)} is no second: give a whole number from 0."
        raise ApiError(Code.INVALID_VALUE, message, "since")
    return int(given)


def totals_of(tally: Tally) -> dict[str, Any]:
    """Since the start; `by_depth` begins with the first draft, pairs are offered and accepted."""
    deepest = max(tally.offered_by_depth, default=-1) + 1
    return {
        "finished": dict(tally.finished),
        "prompt_tokens": tally.prompt,
        "cached_tokens": tally.cached,
        "generated_tokens": tally.generated,
        "tokens_by_source": dict(tally.tokens_by_source),
        "rounds": tally.rounds,
        "offered": tally.offered,
        "accepted": tally.accepted,
        "by_depth": [[tally.offered_by_depth[depth], tally.accepted_by_depth[depth]] for depth in range(deepest)],
        "by_source": {
            source: [count, tally.accepted_by_source[source]] for source, count in tally.offered_by_source.items()
        },
        "widths": dict(sorted(tally.widths.items())),
    }


def engine_of(reading: Reading) -> dict[str, Any]:
    """Held and free."""
    stats = reading.stats
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "launches_in_flight": stats.launches_in_flight,
        "pages": {
            "total": stats.total_pages,
            "used": reading.used_pages,
            "cached": reading.cached_pages,
            "free": stats.free_pages,
        },
        "slots": {"total": stats.total_slots, "free": stats.free_slots},
        "snapshots": {"total": stats.total_snapshots, "free": stats.free_snapshots},
        "cached_prefixes": stats.cached_prefixes,
        "preemptions": stats.preemptions,
        "prefix_hit_tokens": stats.prefix_hit_tokens,
    }


def policy_of(reading: PolicyReading) -> dict[str, Any]:
    """The newest choice, and what the widths were worth when they were last compared."""
    return {
        "width": reading.last.choice.width if reading.last is not None else None,
        "reason": reading.last.choice.reason if reading.last is not None else None,
        "options": _options(reading.weighed) if reading.weighed is not None else [],
        "exploration_budget_ms": 1e3 * reading.budget_s,
        "exploration_spent_ms": 1e3 * reading.spent_s,
    }


def _options(weighed: Explanation) -> list[dict[str, Any]]:
    return [
        {
            "width": option.width,
            "tokens": option.emitted,
            "round_ms": 1e3 * option.seconds,
            "rounds": option.measured,
            "chosen": option.width == weighed.choice.width,
        }
        for option in weighed.options
    ]
