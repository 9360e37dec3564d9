"""The language that chat templates are written in: Jinja in a sandbox, with the additions that transformers makes.

Templates come with a model and are not trusted. Each of the additions below is one that published templates use.
"""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any, Final

from jinja2 import Template, meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class _GenerationBlock(Extension):
    """`{% generation %}` ... `{% endgeneration %}` around what the model writes: marks it for training, renders it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, without the type's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)`, which holds no name that starts with an underscore: those are Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be the name of a variable
        self, *values = args
        for name in (named := dict(*values, **kwargs)):
            _check_name(name)
        Namespace.__init__(self, named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}; use a name without leading underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter would escape characters that mean something in HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates want the local date


_LANGUAGE: Final = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
)
_LANGUAGE.filters["tojson"] = _to_json
_LANGUAGE.globals |= {
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
    "dict": _Dict(),
    "namespace": _Namespace,
}


@functools.lru_cache(maxsize=8)
def compile_template(source: str) -> Template:
    """A template that is ready to render. Raises `TemplateError` where it is not one."""
    return _LANGUAGE.from_string(source)


def variables_of(source: str) -> frozenset[str]:
    """The names that a template reads and does not set itself; none where it is no template."""
    try:
        return frozenset(meta.find_undeclared_variables(_LANGUAGE.parse(source)))
    except (TemplateError, RecursionError):
        return frozenset()
