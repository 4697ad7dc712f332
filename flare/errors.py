"""Everything Flare raises on purpose.

    FlareError
    ├── ConfigError        a key, value or override that cannot mean anything
    ├── CheckpointError    a file that is missing, broken or of another shape than declared
    ├── PlanError          what was asked cannot be prepared (memory, shapes, a refused graph)
    ├── CapacityError      a prepared core has no room or shape for this
    └── RequestError       one request asks for what its recipe or core cannot give

The message is one sentence for the person who can change it: what was asked, what is possible, which key changes it.
Anything else that is raised is a bug and keeps its traceback.
"""


class FlareError(Exception):
    """A mistake the user can mend; the command line prints it without a traceback and exits with status 2."""


class ConfigError(FlareError):
    """A key, value or override that the schema refuses."""


class CheckpointError(FlareError):
    """A checkpoint that cannot be found, fetched, read, or that differs from what the recipe declares."""


class PlanError(FlareError):
    """A preparation that cannot be carried out as asked."""


class CapacityError(FlareError):
    """A need that exceeds what was prepared."""


class RequestError(FlareError):
    """A request that this core cannot serve; nothing else is affected."""
