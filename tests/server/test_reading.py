"""Bodies that never arrive whole."""

import asyncio

import pytest
from starlette.requests import Request

from flare.config.compose import compose
from flare.server.wire.errors import CLIENT_LEFT, ApiError
from flare.server.wire.reading import read
from flare.server.wire.tokens import DetokenizeBody


def test_a_client_that_leaves_within_its_body_is_no_fault_of_the_server():
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, gone)
    with pytest.raises(ApiError) as refused:
        asyncio.run(read(request, DetokenizeBody, compose("smollm2", []).serving))
    assert refused.value.status == CLIENT_LEFT == 499
