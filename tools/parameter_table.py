"""Write the table of sampling parameters from their declarations.

python -m tools.parameter_table          # print it
python -m tools.parameter_table --write  # put it into docs/server.md
"""

from __future__ import annotations

import argparse
import pathlib

from nanoserve.ports.sampling import PARAMETERS, Api, Door, Kind, Parameter

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "server.md"
BEGIN, END = "<!-- parameters: begin -->\n", "<!-- parameters: end -->\n"
_DEFAULTS = {"max_tokens": "none; 16 under `/v1/completions` and in Python, 256 for `nanoserve generate`"}
"""Parameters for which every interface has its own name."""
_VALUES = {
    Kind.SWITCH: "true or false",
    Kind.TEXTS: "texts",
    Kind.TOKEN_IDS: "token ids",
    Kind.BIASES: "numbers by token id",
}
_WHERE = {
    Api.OPENAI: "under `/v1/completions` and `/v1/chat/completions`",
    Api.RESPONSES: "under `/v1/responses`",
    Api.ANTHROPIC: "under `/v1/messages`",
    Api.OLLAMA: "under `/api`",
}


def table() -> str:
    """The rows, as Markdown."""
    lines = ["| parameter | values | default | |", "|---|---|---|---|"]
    for each in PARAMETERS.values():
        default = _DEFAULTS.get(each.name) or (
            "" if each.default in (None, ()) else str(each.default).lower()
        )
        if Door.MODEL in each.doors and each.name not in _DEFAULTS:
            default = f"the model's, else {default}"
        lines.append(f"| `{each.name}` | {_values(each)} | {default} | {each.meaning}{_names(each)} |")
    return "\n".join([*lines, ""])


def with_table(page: str) -> str:
    """The page's text with the table between its two markers."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + table() + END + tail


def _values(parameter: Parameter) -> str:
    if parameter.kind in _VALUES:
        return _VALUES[parameter.kind]
    return f"{_bound(parameter.low)} to {_bound(parameter.high)}"


def _bound(value: float) -> str:
    sign, power = "-" if value < 0 else "", abs(value)
    for exponent in (31, 63, 64):
        if 2**exponent - 1 <= power <= 2**exponent:
            return f"{sign}2^{exponent}{'' if power == 2**exponent else ' - 1'}"
    return f"{value:g}"


def _names(parameter: Parameter) -> str:
    """How interfaces call it that have another name for it, or none."""
    others = {api: names for api, names in parameter.names.items() if names}
    if len(others) == len(Api) and len({*others.values()}) == 1:
        return f" ({' or '.join(f'`{name}`' for name in others[Api.OPENAI])} over HTTP)"
    said = [f"{' or '.join(f'`{name}`' for name in names)} {_WHERE[api]}" for api, names in others.items()]
    if [api for api in Api if parameter.names_in(api)] == [Api.OPENAI]:
        said.append(f"only {_WHERE[Api.OPENAI]}")
    return f" ({'; '.join(said)})" if said else ""


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description="Write the table of sampling parameters.")
    parser.add_argument("--write", action="store_true", help="put it into docs/server.md")
    if parser.parse_args().write:
        PAGE.write_text(with_table(PAGE.read_text()))
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
