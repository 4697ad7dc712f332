"""One HTTP request to a generating route: when it began, how it ended, and who is told."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from flare.errors import CapacityError, FlareError
from flare.server.engine_thread import AnswerLostError
from flare.server.server import Server
from flare.server.wire.errors import ApiError, Code, refused
from flare.server.wire.fields import GeneratingBody

log = logging.getLogger("flare.server")


class ClientLeftError(Exception):
    """Nobody is there to be answered."""


class Exchange:
    """A request and its response.

    Attributes:
        body: None until it was read.
        status: of the response; 499 when the client left before its end.
    """

    def __init__(self, server: Server, route: str) -> None:
        self.server = server
        self.body: GeneratingBody | None = None
        self.status = 500
        self._route = route
        self._began_s = perf_counter()
        server.observer.received(route)

    @property
    def deadline(self) -> float:
        """When it must be over, on the event loop's clock."""
        spent_s = perf_counter() - self._began_s
        return asyncio.get_running_loop().time() + self.server.settings.request_timeout_s - spent_s

    @contextmanager
    def taking_in(self) -> Iterator[None]:
        """While the request is read: what refuses it ends the exchange.

        Raises:
            ApiError: in place of what the engine's own checks raise.
        """
        taken = False
        try:
            yield
            taken = True
        except FlareError as error:
            raise self.failed(error) from error
        except ApiError as error:
            self.status = error.status
            raise
        finally:
            if not taken:
                self.ended()

    def failed(self, error: Exception) -> ApiError:
        """What the client is told, if it is there to be told."""
        told = self._told(error)
        self.status = told.status
        return told

    def ended(self) -> None:
        """Tell observers and the log."""
        seconds = perf_counter() - self._began_s
        self.server.observer.answered(self._route, self.status, seconds)
        user = "" if self.body is None or self.body.user is None else f" user={json.dumps(self.body.user)}"
        log.info("POST %s %d %.3f s%s", self._route, self.status, seconds, user)

    def _told(self, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ClientLeftError):
            return ApiError(Code.CLIENT_LEFT, "The client left.")
        if isinstance(error, TimeoutError):
            limit_s = self.server.settings.request_timeout_s
            return ApiError(Code.TIMEOUT, f"The answer took longer than {limit_s:g} s and was ended.")
        if isinstance(error, AnswerLostError):
            return ApiError(Code.ANSWER_LOST, str(error))
        assert isinstance(error, FlareError)
        told = refused(error, written={} if self.body is None else self.body.written())
        return ApiError(Code.OUT_OF_MEMORY, told.message, "max_tokens") if isinstance(error, CapacityError) else told
