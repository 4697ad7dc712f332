"""The built-in page: static files, and the live numbers it draws."""

from flare.server.page.live import live_router
from flare.server.page.site import site_router
from flare.server.page.timeline import Timeline

__all__ = ["Timeline", "live_router", "site_router"]
