"""Chat templates: the Jinja dialect that Hugging Face checkpoints are written in, in a sandbox."""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
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
    try:
        return environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(f"The model's chat template is not valid Jinja: {error.message}.") from error


def reads(source: str, name: str) -> bool:
    """Whether the template uses a variable it is given; False where the source is not Jinja."""
    try:
        return name in meta.find_undeclared_variables(environment().parse(source))
    except jinja2.TemplateSyntaxError:
        return False


def environment() -> ImmutableSandboxedEnvironment:
    """The dialect."""
    dialect = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    dialect.filters["tojson"] = to_json
    dialect.globals["raise_exception"] = refuse
    dialect.globals["strftime_now"] = formatted_now
    return dialect


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> NoReturn:
    """`raise_exception` of a template."""
    raise jinja2.TemplateError(message)


def formatted_now(format: str) -> str:
    """`strftime_now` of a template: today in the user's own time zone."""
    return datetime.now().strftime(format)
