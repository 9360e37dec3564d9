"""The OpenAPI document as one page of HTML: no script, and nothing that is loaded from another host."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; border-top: 1px solid #ccc; padding-top: 1rem }
b { display: inline-block; min-width: 4.5rem; color: #06c }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto }
table { border-collapse: collapse } td { padding: 0 1rem 0 0; vertical-align: top }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } pre { background: #1c1c1c } }
"""


def render(document: Mapping[str, Any]) -> bytes:
    """The page."""
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>",
        f"<h1>{title}</h1>",
        "<p>Where the server has keys, every route but the probes needs <code>Authorization: Bearer KEY</code>.",
        "<p>The same for programs: <a href=openapi.json>openapi.json</a>.",
        *_operations(document["paths"]),
        "<h1>Schemas</h1>",
        *_schemas(document["components"]["schemas"]),
    ]
    return "\n".join(parts).encode()


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, item in sorted(paths.items()):
        for method, operation in item.items():
            yield f"<h2><b>{method.upper()}</b> <code>{html.escape(path)}</code></h2>"
            yield f"<p>{html.escape(operation.get('description') or operation.get('summary') or '')}"
            if "requestBody" in operation:
                yield f"<p>Body: {_schemas_of(operation['requestBody'])}"
            rows = (
                f"<tr><td>{status}<td>{html.escape(response.get('description', ''))}<td>{_schemas_of(response)}"
                for status, response in sorted(operation["responses"].items())
            )
            yield f"<table>{''.join(rows)}</table>"


def _schemas_of(part: Mapping[str, Any]) -> str:
    """Links to the schemas of a body or a response."""
    schemas = (each.get("schema", {}) for each in part.get("content", {}).values())
    names = (html.escape(str(each.get("$ref", "")).rpartition("/")[2]) for each in schemas)
    return ", ".join(f'<a href="#{name}">{name}</a>' for name in names if name)


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        text = html.escape(json.dumps(schema, indent=2))
        yield f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2><pre>{text}</pre>'
