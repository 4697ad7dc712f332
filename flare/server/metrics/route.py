"""GET /metrics."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from flare.server.metrics.families import engine_families, gauge, request_families, speculation_families
from flare.server.metrics.reading import Reader, Reading
from flare.server.metrics.tally import Tally
from flare.server.metrics.vllm_names import vllm_families
from flare.server.server import Server


class _Exposed(Collector):
    """Everything there is to tell of one server; `reading` is renewed before each collection."""

    def __init__(self, server: Server, tally: Tally) -> None:
        self.reading: Reading | None = None
        self._server = server
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        server, reading = self._server, self.reading
        build = GaugeMetricFamily("flare_build_info", "Version and served model.", labels=("version", "model"))
        build.add_metric((version("flare"), server.model.name if server.model is not None else ""), 1)
        yield build
        yield gauge("flare_ready", "1 where requests are taken in.", server.phase == "ready")
        yield gauge("flare_requests_in_flight", "HTTP requests that are not answered.", server.in_flight)
        yield gauge("flare_event_loop_tasks", "Tasks of the event loop.", len(asyncio.all_tasks()))
        yield from request_families(self._tally)
        yield from speculation_families(self._tally)
        if reading is None or server.model is None:
            return
        yield from engine_families(self._tally, reading)
        if server.settings.metrics_alias == "vllm":
            yield from vllm_families(self._tally, reading, server.model.name)

    def describe(self) -> Iterator[Metric]:
        """Names are not checked at registration: nothing else has any."""
        return iter(())


def router(server: Server, tally: Tally) -> APIRouter:
    """The route, for one server."""
    routes = APIRouter()
    reader, exposed = Reader(server), _Exposed(server, tally)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exposed)
    ProcessCollector(registry=registry)

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters, gauges and histograms in Prometheus' text format."""
        exposed.reading = await reader.read()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes
