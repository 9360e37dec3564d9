"""Joining modules into one script: order, names, and the forms that are refused."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from nanoserve.entrypoints.page.inspect.report import BundleError, bundle

MODULES = {
    "/main.js": (
        '// begins\nimport { greet as say,\n  NAME } from "./lib/greet.js";\nimport * as count from "./lib/count.js";\n'
        "const hidden = 3;\nconsole.log(say(NAME), count.up(), count.up(), hidden);\n"
    ),
    "/lib/greet.js": (
        'import { up } from "../lib/count.js";\nconst hidden = "hello ";\nexport const NAME = "you";\n'
        "export function greet(name) {\n  return hidden + name + up();\n}\n"
    ),
    "/lib/count.js": (
        "let hidden = 0;\n/** @type {import('./greet.js').X} */\nexport function up() {\n  hidden += 1;\n  return hidden;\n}\n"
        "export class Unused {}\nexport async function never() {}\n"
    ),
    "/apart.js": "throw new Error('nobody imports this');\n",
}


def test_modules_stand_in_the_order_in_which_they_need_each_other() -> None:
    script = bundle(MODULES, "/main.js")
    assert [line for line in script.splitlines() if line.startswith("// /")] == [
        "// /lib/count.js",
        "// /lib/greet.js",
        "// /main.js",
    ]
    assert "\nimport " not in script
    assert "\nexport " not in script


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_does_what_the_modules_do() -> None:
    done = subprocess.run(["node", "-e", bundle(MODULES, "/main.js")], capture_output=True, check=True)
    assert done.stdout.decode() == "hello you1 2 3 3\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('import thing from "./lib/count.js";', "cannot be joined"),
        ('import "./lib/count.js";', "cannot be joined"),
        ('const a = await import("./lib/count.js");', "cannot be joined"),
        ("export default 3;", "cannot be joined"),
        ("const a = 1;\nexport { a };", "cannot be joined"),
        ("export let a = 1;", "cannot be joined"),
        ('import { a } from "./missing.js";', "no module /missing.js, which /a.js imports"),
        ('import { a } from "./a.js";', "in a circle: /a.js -> /a.js"),
    ],
)
def test_forms_that_cannot_be_joined_are_refused(text: str, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        bundle({**MODULES, "/a.js": text}, "/a.js")


def test_a_circle_is_named_in_the_direction_of_its_imports() -> None:
    imports = {"/a.js": "b", "/b.js": "c", "/c.js": "a"}
    modules = {path: f'import {{ x }} from "./{name}.js";' for path, name in imports.items()}
    with pytest.raises(BundleError, match=r"in a circle: (/a.js -> /b.js|/b.js -> /c.js|/c.js -> /a.js)"):
        bundle(modules, "/a.js")
