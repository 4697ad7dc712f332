"""The page's files: read once, sent with rules that keep the page from loading anything from elsewhere."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}  # what the page is of
KEYLESS, KEYED = b'data-keyed="no"', b'data-keyed="yes"'
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def site_router(keyed: bool) -> APIRouter:
    """The page at / and what it is made of under /page/; keyed: the page must ask for the server's key."""
    routes = APIRouter(include_in_schema=False)
    for name, response in _responses().items():
        path = f"/page/{name}"
        if name == "index.html":
            path, response = "/", (response[0].replace(KEYLESS, KEYED) if keyed else response[0], response[1])
        routes.add_api_route(path, _sender(*response), methods=["GET", "HEAD"], name=name)
    return routes


def _responses() -> dict[str, tuple[bytes, str]]:
    """Content and media type of every file by name."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in files("flare.server.page").joinpath("static").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in TYPES:
            found[file.name] = (file.read_bytes(), TYPES[kind])
    return found


def _sender(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return send
