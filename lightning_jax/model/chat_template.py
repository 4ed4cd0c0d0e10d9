"""HF chat templates: Jinja source → a compiled template that renders as transformers does.

Templates come with model files, so they run in jinja2's immutable sandbox. Prompts must not depend on the clock where
runs are to be repeated: a template that prints the date gets the day of SOURCE_DATE_EPOCH when that is set.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text in HF templates; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own protocol)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is not None:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).strftime(pattern)
    return datetime.datetime.now().strftime(pattern)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja's own filter escapes HTML, which would corrupt prompts
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def compile_template(source: str) -> jinja2.Template:
    """A template with what HF templates expect: raise_exception, strftime_now, tojson, loop controls, generation.

    ValueError names the line of a syntax error.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error


def read_templates(configured: Any, path: Path) -> dict[str, str]:
    """Sources by name, from tokenizer_config's string or list of named ones; a .jinja file replaces the default."""
    templates: dict[str, str] = {}
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        templates = {entry["name"]: entry["template"] for entry in configured}
    if path.is_file():
        templates["default"] = path.read_bytes().decode("utf-8")
    return templates
