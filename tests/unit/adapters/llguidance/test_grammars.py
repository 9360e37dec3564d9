"""Every kind of constraint over every kind of vocabulary, and what is refused."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest
from llguidance import LLTokenizer
from structlog.testing import capture_logs
from tokenizers import AddedToken, Tokenizer, decoders, models

from nanoserve.adapters.llguidance.compiling import Compiler
from nanoserve.adapters.llguidance.crew import start_workers
from nanoserve.adapters.llguidance.grammars import LLGrammars
from nanoserve.adapters.llguidance.limits import MAX_CHARACTERS, MAX_VALUES
from nanoserve.adapters.llguidance.reading import check
from nanoserve.adapters.llguidance.schemas import in_known_words
from nanoserve.adapters.llguidance.serving import Settings
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.grammar import Constraint, ConstraintKind
from tests.patience import wait_until
from tests.unit.adapters.llguidance.vocabularies import (
    END,
    PADDED,
    accepts,
    allowed,
    byte_level,
    compiled,
    compiler_of,
    grammars_of,
    plain,
    sentencepiece,
    vocabulary_of,
)

TOKENIZER = plain()
GRAMMARS = grammars_of(TOKENIZER)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "object"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "array"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
NEW_TAG = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {"begin": f"<f={name}>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"}
            for name, schema in (("a", {"type": "object"}), ("b", {"type": "array"}))
        ],
    }
}
ODD = ["a\nb", 'q"u\\o', "é漢😀", "\x00\x01\x7f", "/", "<think>", "", "a{2}", "\u2028", "\\n", "|"]
KINDS: list[tuple[str, str, list[str], list[str]]] = [
    (
        "json_schema",
        json.dumps(PERSON),
        ['{"name": "A", "age": 3}', '{"name":"A","age":150}'],
        ['{"age": 3}', "{}"],
    ),
    (
        "json_schema",
        json.dumps(PERSON),
        [],
        ['{"name": "A", "age": 151}', "{" + " " * 41 + '"name": "A", "age": 3}'],
    ),
    ("json_object", "", ["{}", '{"a": [1, {"b": null}]}'], ["[]", '"a"', "{"]),
    ("regex", "(a+)+b", ["aab"], ["b", "aaba"]),
    ("regex", "[^x]", ["é", "漢"], ["x", "éé"]),
    ("choice", json.dumps(ODD), ODD, ["a", "é漢", "zz"]),
    ("lark", 'start: "a" b\nb: /[0-9]{2}/', ["a12"], ["a1", "a123"]),
    ("gbnf", 'root ::= "a" tail\ntail ::= ("b" | "c")+', ["abc"], ["a", "abd"]),
    (
        "structural_tag",
        json.dumps(TAG),
        ["hi", 'x <f=a>{"y": 1}</f> z <f=b>[]</f>'],
        ["x <f=a>[]</f>", "<f=c>{}</f>"],
    ),
    ("structural_tag", json.dumps(NEW_TAG), ["hi", 'x <f=a>{"y": 1}</f> z'], ["x <f=a>{}"]),
]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(("kind", "text", "good", "bad"), KINDS)
def test_each_kind_keeps_its_language(kind: str, text: str, good: list[str], bad: list[str]) -> None:
    check(Constraint(kind, text))
    matcher = compiled(GRAMMARS, kind, text)
    for answer in good:
        assert accepts(matcher.grammar.matcher(), ids_of(answer)), answer
    for answer in bad:
        assert not accepts(matcher.grammar.matcher(), ids_of(answer)), answer


def test_a_choice_is_of_as_many_texts_as_it_may_have() -> None:
    matcher = compiled(GRAMMARS, "choice", json.dumps([f"x{n}y" for n in range(MAX_VALUES)]))
    assert accepts(matcher.grammar.matcher(), ids_of(f"x{MAX_VALUES - 1}y"))
    assert not accepts(matcher, ids_of(f"x{MAX_VALUES}y"))


FORMATS = {
    "date": (
        ["2024-02-29", "2000-02-29", "2023-02-28", "2023-12-31"],
        ["2023-02-29", "1900-02-29", "2023-04-31"],
    ),
    "time": (["23:59:59Z", "01:02:03.5+01:00"], ["23:59:60Z", "22:59:60Z"]),
    "date-time": (
        ["2024-02-29T00:00:00Z", "2023-12-31T01:02:03.25+02:00"],
        ["2023-02-29T00:00:00Z", "2024-01-01T00:00:60Z"],
    ),
    "hostname": (
        ["a.example", "xn.x-n", ".".join(["a" * 63] * 3 + ["a" * 61])],
        [".".join(["a" * 63] * 4), "xn--a", "a.XN--b"],
    ),
}


@pytest.mark.parametrize("form", FORMATS)
def test_formats_are_no_wider_than_they_say_in_every_kind(form: str) -> None:
    """Beside other keywords, below properties of any name, in grammars and in tags; what is data stays as it is."""
    good, bad = FORMATS[form]
    plain = json.dumps({"type": "string", "format": form, "minLength": 1, "allOf": [{"pattern": "."}]})
    in_lark = f'start: "<" text ">"\ntext: %json {plain}\n'
    tag = {"structures": [{"begin": "<", "schema": json.loads(plain), "end": ">"}], "triggers": ["<"]}
    held = {"type": "object", "properties": {"default": json.loads(plain)}, "additionalProperties": False}
    for kind, text, around in (
        ("json_schema", plain, '"{}"'),
        ("json_schema", json.dumps(held), '{{"default":"{}"}}'),
        ("lark", in_lark, '<"{}">'),
        ("structural_tag", json.dumps(tag), '<"{}">'),
    ):
        matcher = compiled(GRAMMARS, kind, text)
        for answer, is_good in [*((each, True) for each in good), *((each, False) for each in bad)]:
            assert accepts(matcher.grammar.matcher(), ids_of(around.format(answer))) is is_good, (
                kind,
                answer,
            )
    constant = compiled(GRAMMARS, "json_schema", json.dumps({"const": {"format": form}}))
    assert accepts(constant, ids_of(json.dumps({"format": form})))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\s\\s$", "\ufeff\\s", "\x85\\s"),
        (r"^[\S]$", "\x85", "\ufeff"),
        (r"^[^\S]$", "\u2028", "x"),
    ],
)
def test_white_space_is_that_of_ecmascript(pattern: str, good: str, bad: str) -> None:
    matcher = compiled(GRAMMARS, "json_schema", json.dumps({"type": "string", "pattern": pattern}))
    assert accepts(matcher.grammar.matcher(), ids_of(json.dumps(good, ensure_ascii=False)))
    assert not accepts(matcher.grammar.matcher(), ids_of(json.dumps(bad, ensure_ascii=False)))


def test_compact_json_has_no_blanks() -> None:
    matcher = compiled(GRAMMARS, "json_object", "", compact=True)
    assert accepts(matcher.grammar.matcher(), ids_of('{"a":[1,2]}'))
    assert not accepts(matcher.grammar.matcher(), ids_of('{"a": 1}'))


def wide(count: int) -> dict[str, Any]:
    """An object of so many required properties."""
    named: dict[str, Any] = {f"p{n}": {} for n in range(count)}
    return {"type": "object", "properties": named, "required": [*named]}


BOUNDED = wide(500) | {"required": [], "minProperties": 1, "additionalProperties": False}
DEAR: list[tuple[str, dict[str, Any]]] = [
    ("schema", BOUNDED),
    ("schema", {"required": [f"r{n}" for n in range(500)], "additionalProperties": wide(200)}),
    ("schema", {"prefixItems": [{"pattern": f"^a{n}$", "minLength": 9} for n in range(2000)]}),
    ("patternProperties", {"patternProperties": {f"^a{n}$": {} for n in range(100)}}),
    ("oneOf", {"oneOf": [{"enum": [f"{n} {m}" for m in range(100)]} for n in range(150)]}),
    ("anyOf", {"allOf": [wide(1000), {"anyOf": [{"type": "null"}] * 6000}]}),
    (
        "\\$ref",
        {
            "$ref": "#/$defs/0",
            "$defs": {"30": {"type": "object"}}
            | {
                str(n): {
                    "properties": {
                        side: {"allOf": [{"type": "object"}, {"$ref": f"#/$defs/{n + 1}"}]} for side in "lr"
                    }
                }
                for n in range(30)
            },
        },
    ),
    *(
        ("\\$ref", {"$ref": reference} | beside)
        for reference, beside in (
            ("#x", {"$defs": {"a": BOUNDED | {"$anchor": "x"}}}),
            ("#/$defs/%78", {"$defs": {"x": BOUNDED}}),
            ("#/examples/0", {"examples": [BOUNDED]}),
            ("#/$defs/a", {"$defs": {"a": {"$id": "http://a", "$ref": "#/x", "x": BOUNDED}}}),
        )
    ),
    ("allOf", {"allOf": [wide(1900), {"additionalProperties": {"prefixItems": [wide(1500), wide(1500)]}}]}),
]
"""Schemas that took the library from two seconds to for ever, each named by what is said of it."""
PATTERNS = {"prefixItems": [{"pattern": "^a"}] * 20}
TAGS = [{"begin": f"<{n}", "schema": PATTERNS} for n in range(99)]
BAD: list[tuple[str, str, str]] = [
    ("xml", "", "must be one of json_schema"),
    ("json_schema", "{", "must be JSON"),
    ("json_schema", "3", "must be an object"),
    ("json_schema", '{"not": {}}', "not"),
    ("json_schema", '{"uniqueItems": true}', "uniqueItems"),
    ("json_schema", '{"oneOf": [{"minimum": 1}, {"minimum": 2}]}', "or write anyOf"),
    ("json_schema", '{"pattern": "(?=a)b", "type": "string"}', "look-around"),
    ("json_schema", '{"$ref": "http://elsewhere/x"}', r"\$ref: must begin with #"),
    ("json_schema", "[" * 100_000, "nested"),
    ("json_schema", '{"a":' * 65 + "1" + "}" * 65, "nested"),
    ("json_schema", json.dumps({"enum": list(range(10_001))}), "enum"),
    ("json_schema", json.dumps({"multipleOf": 999_983}), "multipleOf"),
    ("json_schema", json.dumps({"multipleOf": 1e-300}), "multipleOf"),
    ("json_schema", json.dumps({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}), "multipleOf"),
    ("json_schema", json.dumps({"items": [{"$ref": "#"}] * 1001}), r"\$ref"),
    ("json_schema", json.dumps({"pattern": "a{99999}"}), "pattern: a repetition"),
    ("json_schema", '"' + "a" * MAX_CHARACTERS[ConstraintKind.JSON_SCHEMA] + '"', "characters"),
    (
        "json_schema",
        json.dumps({"allOf": [{"pattern": f"(a|b)*a.{{{n}}}c"} for n in range(16)]}),
        "pattern: 8",
    ),
    (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"$ref": "#/$defs/a"},
                    {
                        "additionalProperties": {
                            "anyOf": [{"items": {"allOf": [{"pattern": "b"}] * 5}}, {"minimum": 3}]
                        }
                    },
                ],
                "$defs": {"a": {"properties": {"x": {"items": {"allOf": [{"pattern": "a"}] * 4}}}}},
            }
        ),
        "pattern: 8",
    ),
    *(("json_schema", json.dumps(schema), f"{named}: too much work") for named, schema in DEAR),
    ("structural_tag", json.dumps({"triggers": ["<"], "structures": TAGS}), "schema: too much work"),
    ("lark", "start: " + " ".join([f"%json {json.dumps(PATTERNS)}"] * 99), "schema: too much work"),
    ("gbnf", "start: %json " + json.dumps(BOUNDED), "schema: too much work"),
    ("regex", "(?i)" + "[\u20ac-\U0010ffff]" * 100, "classes: too much work"),
    ("lark", "start: A\nA: /" + "[b-\u9fff]" * 100 + "/i", "expressions: too much work"),
    (
        "lark",
        "start: s\ns: " + " | ".join(" ".join("s" * n) for n in range(2, 60)) + " | ",
        "refer to each other",
    ),
    ("gbnf", "root ::= a0\n" + "\n".join(f"a{n} ::= a{n + 1}" for n in range(990)), "its rules times"),
    ("gbnf", "root ::= a\n" + "\n" * 65_000, "Rule 'a' not found"),
    ("json_object", "{}", "characters"),
    ("regex", "(a", "unclosed"),
    ("regex", "a{1,20000}", "a repetition"),
    ("regex", "a{9999999999999999999999999}", "a repetition"),
    ("regex", "a" * 9000, "characters"),
    ("choice", "[]", "at least one"),
    ("choice", '"a"', "at least one"),
    ("choice", json.dumps([str(number) for number in range(10_001)]), "10000"),
    ("lark", 'x: "a"', "start"),
    ("lark", "start: a", "unknown"),
    ("lark", "start: r0\n" + "\n".join(f'r{n}: "x" r{n + 1}' for n in range(5000)), "1000 rules"),
    ("lark", 'start: %json {"multipleOf": 99999999}', "lark: multipleOf"),
    (
        "lark",
        'start: a %json {"type": "null"}\na: %json ' + json.dumps({"enum": list(range(10_001))}),
        "lark: enum",
    ),
    ("lark", "start: %json " + '{"a":' * 5000 + "1" + "}" * 5000, "lark: may be nested"),
    ("lark", "start: %json {1}", "lark: must be JSON"),
    ("lark", "start: b" + "\n" * 250_000, "unknown"),
    ("lark", "start:\n" + "b" * 250_000, "Expected"),
    ("lark", 'start: "a"{1,' + " " * 250_000, "Expected"),
    ("gbnf", "root := x", "::="),
    ("gbnf", "root ::= " + "(" * 5000, "gbnf"),
    ("structural_tag", "[]", "must be object, got array"),
    ("structural_tag", "{}", "triggers"),
    ("structural_tag", '{"triggers": ["x"], "structures": [{"begin": "<f>", "schema": {}}]}', "begin"),
    ("structural_tag", '{"format": {"type": "sequence"}}', "format"),
]


@pytest.mark.parametrize(("kind", "text", "named"), BAD)
def test_what_cannot_be_kept_is_refused_by_name(kind: str, text: str, named: str) -> None:
    with pytest.raises(BadValueError, match=named) as caught:
        check(Constraint(kind, text))
    assert len(str(caught.value)) < 600
    with pytest.raises(BadValueError, match=named):
        compiled(GRAMMARS, kind, text)


def test_rules_that_do_not_contain_themselves_may_be_referred_to_often() -> None:
    lark = (
        "start: (line | start2)*\nstart2: line start?\nline: " + "ws word " * 900 + "\nws: / */\nword: /x+/\n"
    )
    check(Constraint("lark", lark))


def test_two_maps_of_the_same_members_are_joined_once() -> None:
    """The library would copy the members for each of them, and all that they refer to."""
    maps = {f"m{n}": {"patternProperties": {"^x": ref(n)}, "additionalProperties": ref(n)} for n in range(40)}
    both = [{"allOf": [{"$ref": f"#/$defs/m{n}"}, {"additionalProperties": ref(n)}]} for n in range(40)]
    items = {
        str(n): {"properties": {f"p{m}": both[m] for m in range(n)} | {"a": {"type": "string"}}}
        for n in range(40)
    }
    schema = {"type": "array", "items": both[39], "$defs": maps | items}
    check(Constraint("json_schema", json.dumps(schema)))


def ref(name: object) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def test_many_patterns_may_stand_where_few_hold_together() -> None:
    choices = [{"properties": {"kind": {"pattern": f"^{n}$"}, "next": {"$ref": "#"}}} for n in range(20)]
    check(Constraint("json_schema", json.dumps({"anyOf": choices, "type": "object"})))


def test_what_no_text_fits_is_refused_once_it_is_ready() -> None:
    with pytest.raises(BadValueError, match="lark: no text of this model's tokens fits"):
        compiled(GRAMMARS, "lark", "start: x\nx: y\ny: x")


def test_a_special_token_is_known_by_its_vocabulary_alone() -> None:
    unknown = Constraint("lark", 'start: <|nope|> "a"')
    check(unknown)
    with pytest.raises(BadValueError, match="unknown special token"):
        compiled(GRAMMARS, unknown.kind, unknown.text)


@pytest.mark.parametrize(
    "tokenizer", [plain(), byte_level(), sentencepiece(metaspace=False), sentencepiece(metaspace=True)]
)
def test_no_text_makes_special_or_surplus_ids(tokenizer: Tokenizer) -> None:
    """Anything goes, and every id that is text is allowed unless it breaks UTF-8."""
    grammars = grammars_of(tokenizer)
    size = tokenizer.get_vocab_size()
    found = allowed(grammars, compiled(grammars, "regex", "(.|\n)*")) - {tokenizer.token_to_id(END)}
    special = {
        token
        for token, each in tokenizer.get_added_tokens_decoder().items()
        if each.special or each.content[0] == "<"
    }
    assert found
    assert max(found) < size
    assert not found & special
    for token in set(range(size)) - special:
        text = tokenizer.decode([token])
        if text and "\ufffd" not in text:
            assert token in found, tokenizer.id_to_token(token)


@pytest.mark.parametrize("tokenizer", [plain(), byte_level()])
@pytest.mark.parametrize("text", ["<|end|>x", "x<think>", "[CALL]"])
def test_the_text_of_a_special_token_is_written_as_text(tokenizer: Tokenizer, text: str) -> None:
    """Also where nothing else can be said, for which llguidance asks the tokenizer."""
    grammars = grammars_of(tokenizer)
    for kind, written, whole in (
        ("choice", json.dumps([text]), text),
        ("regex", "".join(f"\\{each}" if each in "|[]" else each for each in text), text),
        ("json_schema", json.dumps({"const": text}), f'"{text}"'),
        (
            "json_schema",
            json.dumps({"const": text}).replace("<", "\\u003c").replace("[", "\\u005b"),
            f'"{text}"',
        ),
        ("lark", f'start: "{text}"', text),
    ):
        matcher = compiled(grammars, kind, written)
        said: list[int] = []
        while (may := allowed(grammars, matcher)) and not matcher.may_end():
            said.append(max(may - {tokenizer.token_to_id(END)}))
            assert not grammars.consume([(matcher, said[-1])])
        assert tokenizer.decode(said) == whole


def test_the_text_of_no_token_is_made_but_of_special_ones() -> None:
    texts: list[object] = []

    def note(_frame: object, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") == "decode_str":
            texts.append(called)

    compiler = compiler_of(byte_level())
    sys.setprofile(note)
    try:
        special = compiler.special
    finally:
        sys.setprofile(None)
    assert 0 < len(texts) == len(special) < 10


def test_a_vocabulary_that_cannot_be_made_is_told_once_and_refuses_every_constraint_by_its_reason() -> None:
    wordpieces = Tokenizer(models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    wordpieces.decoder = decoders.WordPiece()
    grammars = LLGrammars(lambda: start_workers(Settings(wordpieces.to_str(), (1,), 2, 2), 1), workers=1)
    with capture_logs() as logs:
        grammars.begin()
        wait_until(lambda: logs)  # without a constraint
        for _ in range(2):
            with pytest.raises(BadValueError, match="of a kind that no grammar can follow"):
                compiled(grammars, "regex", "a")
    [told] = logs
    assert (told["log_level"], told["event"]) == ("warning", "no structured output")
    assert "of a kind that no grammar can follow" in told["reason"]


def test_a_grammar_names_special_tokens_and_no_surplus_ids() -> None:
    tokenizer = byte_level()
    grammars, size = grammars_of(tokenizer), tokenizer.get_vocab_size()
    think, call = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("[CALL]")
    assert allowed(grammars, compiled(grammars, "lark", 'start: <think> "a"')) == {think}
    assert allowed(grammars, compiled(grammars, "lark", f'start: <[{call}]> "a"')) == {call}
    for surplus in (size, size + PADDED - 1):
        assert allowed(grammars, compiled(grammars, "lark", f'start: <[{surplus}]> "a"')) == set()
    tag = {"structures": [{"begin": "<think>x", "schema": {}}], "triggers": ["<think>"]}
    found = allowed(grammars, compiled(grammars, "structural_tag", json.dumps(tag)))
    assert {think, tokenizer.token_to_id("a")} <= found


def test_added_tokens_behind_the_logits_are_left_out() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(f"<image {number}>", special=True) for number in range(9)])
    grammars = grammars_of(tokenizer, padded=-9)
    assert allowed(grammars, compiled(grammars, "choice", '["a"]')) == {tokenizer.token_to_id("a")}


def test_sentencepiece_pieces_are_their_bytes() -> None:
    tokenizer = sentencepiece(metaspace=False)
    grammars = grammars_of(tokenizer)
    names = {
        tokenizer.id_to_token(each) for each in allowed(grammars, compiled(grammars, "regex", " né| ab"))
    }
    assert names == {"<0x20>", "▁", "▁né", "▁a"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(a{400}){400}"),
        ("regex", "a{400,}{400}"),
        ("regex", "(((a{30}){30}){30}){30}"),
        ("json_schema", '{"pattern": "^(a\\u007b400}){400}$", "type": "string"}'),
        ("lark", "start: A\nA: B{400}\nB: /a{400}/"),
    ],
)
def test_a_constant_that_is_repeated_is_not_written_out(kind: str, text: str) -> None:
    assert compiler_of(byte_level()).make(Constraint(kind, text)).inner.compute_ff_tokens() == []


def test_the_same_map_is_looked_at_once_however_often_it_is_joined() -> None:
    seen = list[object]()

    class Value(dict[str, object]):
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            seen.append(other)
            return True

    named = {f"p{number}": {"const": Value()} for number in range(5)}
    joined = {"allOf": [{"$ref": "#/$defs/a"}, {}]}
    schema = {
        "$defs": {"a": {"properties": named, "additionalProperties": {"const": Value()}}},
        "prefixItems": [joined] * 50,
    }
    known = in_known_words("", schema, "")
    assert known["prefixItems"] == [joined] * 50
    assert len(seen) == len(named)


def test_ends_are_in_the_mask_where_the_answer_may_end_unless_the_grammar_speaks_of_them() -> None:
    tokenizer = byte_level()
    grammars, end = grammars_of(tokenizer), tokenizer.token_to_id(END)
    for kind, text in (("regex", "a*"), ("lark", "start: /a*/"), ("regex", f"a|{END}")):
        matcher = compiled(grammars, kind, text)
        assert matcher.ends == {end}
        assert (end in allowed(grammars, matcher)) == (text != f"a|{END}")
    think, size = tokenizer.token_to_id("<think>"), tokenizer.get_vocab_size()
    for text in ("start: <think> /a/", f'start: <[{think}]> "<b>"'):
        assert compiled(grammars, "lark", text).ends == {end}
    lists = (f"<[{think},{end}]>", f"<[{end}-{think}]>", f"<[^{think}]>")
    for text in (
        f"start: /a/ {END}",
        'start: "<[a"',
        *(f"start: {each}" for each in (f"<[{end}]>", f"<[{size}]>", *lists)),
    ):
        assert compiled(grammars, "lark", text, client="any").ends == set(), text


def test_slices_of_a_vocabulary_change_no_mask() -> None:
    """Also of texts of bounded length near their end, in tokens of several bytes."""
    size, draw = TOKENIZER.get_vocab_size(), random.Random(0)
    ends = TOKENIZER.encode(END, add_special_tokens=False).ids
    bare = Compiler(lambda: LLTokenizer(TOKENIZER.to_str(), n_vocab=size, eos_token=ends, slices=[]), size)
    schema = {"type": "array", "items": {"type": "string", "maxLength": 14}}
    sliced = Compiler(lambda: vocabulary_of(TOKENIZER, padded=0), size)
    pair = [each.make(Constraint("json_schema", json.dumps(schema))) for each in (sliced, bare)]
    for _ in range(20):
        matchers = [each.copy() for each in pair]
        for _ in range(40):
            mask, expected = (each.inner.compute_bitmask() for each in matchers)
            assert mask == expected
            bits = int.from_bytes(mask, "little")
            token = draw.choice([bit for bit in range(size) if bits >> bit & 1])
            if token in ends:
                break
            assert [each.consume(token) for each in matchers] == ["", ""]
