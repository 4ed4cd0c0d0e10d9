"""Whether a tool call is one at all: its name among the tools offered, its arguments JSON that fits the tool's schema.

Known to the policy server, which keeps the verdict with the call, and to the assembler, which goes on from there.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lightning_jax.types import ToolVerdict


def judged_call(name: str, arguments: str, schemas: Mapping[str, Any] | None) -> tuple[ToolVerdict, str]:
    """(verdict, what is wrong in words) of a call that nobody has answered yet: "unanswered" where nothing is wrong.

    schemas: tool name → JSON schema of its arguments, of the tools that were offered; None: not known.
    """
    if not name:
        return ("invalid_json" if arguments else "unknown"), arguments
    if schemas is not None and name not in schemas:
        return "unknown_tool", f"{name!r} is not among {sorted(schemas)}"
    try:
        document = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return "invalid_json", str(error)
    misfit = _misfit(document, schemas[name]) if schemas is not None else ""
    return ("schema_mismatch", misfit) if misfit else ("unanswered", "")


def load_validators() -> None:
    """Import what judging takes, which costs seconds where a package for IRIs is installed too (Jupyter brings one)."""
    importlib.import_module("jsonschema")


def _misfit(arguments: Any, schema: Any) -> str:
    """Why arguments do not fit a tool's JSON schema; "" where they do, or where the schema itself is none."""
    if not isinstance(schema, dict):
        return ""
    validator = _validator(json.dumps(schema, sort_keys=True))
    if validator is None:
        return ""
    try:
        error = next(iter(validator.iter_errors(arguments)), None)
    except Exception:  # a schema with references that lead nowhere fails only when used
        return ""
    return str(error.message) if error is not None else ""


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    document = json.loads(schema)
    try:
        kind = validator_for(document, default=Draft202012Validator)
        kind.check_schema(document)
        return kind(document)
    except (SchemaError, RecursionError):
        return None
