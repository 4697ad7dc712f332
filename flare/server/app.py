"""The HTTP application of one server: its routes, who may use them, and how refusals look."""

import hmac
from difflib import get_close_matches
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from flare.server import metrics
from flare.server.observer import Observers
from flare.server.page import Timeline, live_router, site_router
from flare.server.routes import chat, completions, tokens
from flare.server.routes.describing import body_schemas
from flare.server.routes.models import health_router, models_router
from flare.server.server import Server
from flare.server.wire.errors import STATUSES, ApiError, Code, shortened

TITLE = "Flare"
OPEN = (health_router,)  # for anyone
GUARDED = (chat.router, completions.router, models_router, tokens.router)  # for who has the key


def create_app(server: Server) -> FastAPI:
    """The application over a server's state, which may still be loading."""
    app = FastAPI(title=TITLE, docs_url=None, redoc_url=None)
    guard = [Depends(_guard(server))]
    for router in OPEN:
        app.include_router(router(server))
    for router in GUARDED:
        app.include_router(router(server), dependencies=guard)
    tally, timeline = metrics.Tally(), Timeline()
    server.observer = Observers((server.observer, tally, timeline))
    app.include_router(site_router(keyed=server.api_key is not None))
    app.include_router(metrics.router(server, tally))
    app.include_router(live_router(server, tally, timeline), dependencies=guard)
    app.add_exception_handler(ApiError, _refuse)  # pyright: ignore[reportArgumentType]  its own kind of error
    app.add_exception_handler(HTTPException, _refuse_path)  # pyright: ignore[reportArgumentType]
    app.add_exception_handler(Exception, _confess)
    app.openapi = lambda: _described(app)
    return app


def _guard(server: Server) -> Any:
    """A dependency that lets in who shows the server's key."""
    bearer = HTTPBearer(auto_error=False)

    async def guard(shown: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if server.api_key is None:
            return
        if shown is None or not hmac.compare_digest(shown.credentials.encode(), server.api_key.encode()):
            raise ApiError(
                Code.INVALID_API_KEY,
                "Show the server's key: Authorization: Bearer KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return guard


async def _refuse(_request: Request, error: ApiError) -> JSONResponse:
    return error.response()


async def _refuse_path(request: Request, error: HTTPException) -> JSONResponse:
    """A path that is not there, or not with this method."""
    asked, headers = f"{request.method} {shortened(request.url.path)[1:-1]}", error.headers or {}
    if error.status_code == STATUSES[Code.WRONG_METHOD]:
        return ApiError(
            Code.WRONG_METHOD, f"{asked} is not offered: use {headers.get('Allow', 'another method')}.", headers=headers
        ).response()
    near = get_close_matches(request.url.path[:80], request.app.openapi()["paths"], 1)
    closing = f"did you mean {near[0]}?" if near else "GET /openapi.json tells which there are."
    return ApiError(Code.UNKNOWN_PATH, f"There is no {asked} here; {closing}", headers=headers).response()


async def _confess(_request: Request, error: Exception) -> JSONResponse:
    """A bug: the traceback goes to the log, the client learns its kind."""
    return ApiError(Code.INTERNAL, f"The server failed: {type(error).__name__}.").response()


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {}).update(body_schemas())
        app.openapi_schema = document
    return app.openapi_schema
