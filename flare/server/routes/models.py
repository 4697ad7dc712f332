"""GET /v1/models, /health and /version."""

from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import JSONResponse

from flare.server.routes.asking import check_model
from flare.server.server import Phase, ServedModel, Server
from flare.server.wire.errors import AWAY_RETRY_S, refusals


class ModelBody(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelsBody(BaseModel):
    """All served models."""

    object: Literal["list"]
    data: list[ModelBody]


class HealthBody(BaseModel):
    """Whether requests are taken in."""

    status: Phase


class VersionBody(BaseModel):
    """Flare's version."""

    version: str


def models_router(server: Server) -> APIRouter:
    """The routes about the model, for one server."""
    routes = APIRouter()

    @routes.get("/v1/models", responses=refusals(401, 503))
    async def models() -> ModelsBody:
        """The one model that is served."""
        return ModelsBody(object="list", data=[_body(server.ready_model())])

    @routes.get("/v1/models/{name:path}", responses=refusals(401, 404, 503))
    async def model(name: str) -> ModelBody:
        """One model by name."""
        served = server.ready_model()
        check_model(name, served)
        return _body(served)

    return routes


def health_router(server: Server) -> APIRouter:
    """The routes anyone may ask, for one server."""
    routes = APIRouter()

    @routes.get("/health", response_model=HealthBody, responses={503: {"model": HealthBody}})
    async def health() -> JSONResponse:
        """200 when requests are taken in; 503 while the model loads, when the server drains or the engine stopped."""
        away = {"Retry-After": str(AWAY_RETRY_S)}
        body = {"status": server.phase}
        return JSONResponse(body) if server.phase == "ready" else JSONResponse(body, 503, away)

    @routes.get("/version")
    async def flare_version() -> VersionBody:
        """Flare's version."""
        return VersionBody(version=version("flare"))

    return routes


def _body(model: ServedModel) -> ModelBody:
    return ModelBody(
        id=model.name,
        object="model",
        created=model.created,
        owned_by="flare",
        root=model.config.recipe.name,
        max_model_len=model.extent.context,
    )
