"""Chat templates: the Jinja dialect that Hugging Face checkpoints are written in, in a sandbox."""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from flare.errors import RequestError


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here it only prints its body."""

    tags = {"generation"}  # noqa: RUF012 — the name and type that Jinja reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(source: str) -> jinja2.Template:
    """The template of `source`, safe to render with text of strangers.

    Raises:
        RequestError: the source is not Jinja.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = formatted_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(f"The model's chat template is not valid Jinja: {error.message}.") from error


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def refuse(message: str) -> NoReturn:
    """`raise_exception` of a template."""
    raise jinja2.TemplateError(message)


def formatted_now(format: str) -> str:
    """`strftime_now` of a template: today in the user's own time zone."""
    return datetime.now().strftime(format)
