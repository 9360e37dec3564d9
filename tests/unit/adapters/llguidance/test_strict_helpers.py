"""Schemas as OpenAI's client writes them are closed already."""

from __future__ import annotations

from enum import StrEnum

import pydantic
from openai import pydantic_function_tool
from openai.lib._pydantic import to_strict_json_schema

from nanoserve.domain.text.dialects.schema import closed


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(pydantic.BaseModel):
    lat: float
    colours: list[Colour]


class Trip(pydantic.BaseModel):
    start: Place
    end: Place | None = pydantic.Field(description="where to")


def test_what_openais_helpers_write_is_closed_already() -> None:
    function = pydantic_function_tool(Trip)["function"]
    for schema in (function["parameters"], to_strict_json_schema(Trip)):
        assert closed(dict(schema)) == schema
    assert closed(Trip.model_json_schema())["$defs"]["Place"]["additionalProperties"] is False
