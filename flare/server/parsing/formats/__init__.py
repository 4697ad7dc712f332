"""How models write tool calls: one file a format, and the table that names them.

A new format is a file with `read` and `write` (see `tool_format.py`), its line in `FORMATS`, its name in the schema of
`serving.tool_format`, and, where chat templates show it, a sign to know it by.
"""

from flare.server.parsing.formats.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from flare.server.parsing.formats.dsml import DSML, DSML_V4
from flare.server.parsing.formats.glm import GLM
from flare.server.parsing.formats.hermes import HERMES
from flare.server.parsing.formats.json_lines import JSON_LINES
from flare.server.parsing.formats.parameters import PARAMETERS
from flare.server.parsing.formats.tool_format import ToolFormat

__all__ = ["FORMATS", "ToolFormat", "chosen"]

FORMATS = {
    "json": JSON_LINES,
    "hermes": HERMES,
    "parameters": PARAMETERS,
    "glm": GLM,
    "deepseek": DEEPSEEK,
    "deepseek_fenced": DEEPSEEK_FENCED,
    "dsml": DSML,
    "dsml_v4": DSML_V4,
}
"""`serving.tool_format`, but for auto and none."""

# What a template holds that shows models how to call, most telling first.
_SIGNS = (
    (("｜DSML｜tool_calls",), DSML_V4),
    (("｜DSML｜",), DSML),
    (("<arg_key>",), GLM),
    (("<function=",), PARAMETERS),
    (("<｜tool▁call▁begin｜>", "```json"), DEEPSEEK_FENCED),
    (("<｜tool▁call▁begin｜>",), DEEPSEEK),
    (("<tool_call>",), HERMES),
)


def chosen(template: str) -> ToolFormat:
    """The format that a chat template shows; bare JSON where it shows none that is known."""
    return next((format for signs, format in _SIGNS if all(sign in template for sign in signs)), JSON_LINES)
