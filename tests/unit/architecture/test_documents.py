"""The documents that are generated from the code agree with it."""

from __future__ import annotations

import pathlib
import re
import tomllib

from tools import model_table, parameter_table, speed_chart
from tools.state_diagram import PAGE, with_diagrams

ROOT = pathlib.Path(__file__).parents[3]


def test_the_state_diagrams_are_the_tables() -> None:
    assert with_diagrams(PAGE.read_text()) == PAGE.read_text()


def test_the_table_of_parameters_is_made_from_their_declarations() -> None:
    page = parameter_table.PAGE.read_text()
    assert parameter_table.with_table(page) == page


def test_the_table_of_models_is_made_from_the_registry() -> None:
    page = model_table.PAGE.read_text()
    assert model_table.with_table(page) == page, "python -m tools.model_table --write brings it up to date"


def test_the_chart_of_speed_is_drawn_from_its_table() -> None:
    for path, picture in speed_chart.pictures().items():
        assert path.read_text() == picture, f"make chart draws {path.name} anew"


def test_every_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"].values()
    wanted = [*project["project"]["dependencies"], *(each for group in groups for each in group)]
    names = {re.split(r"[<>=\[]", each)[0] for each in wanted}
    rows = (ROOT / "docs" / "dependencies.md").read_text()
    listed = {
        name.strip()
        for row in re.findall(r"^\| ([a-z0-9-]+(?:, [a-z0-9-]+)*) \|", rows, re.MULTILINE)
        for name in row.split(",")
    }
    assert names == listed - {"package"}


def test_links_in_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", (ROOT / "README.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= linked


def test_decisions_are_numbered_one_by_one() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for page in pages:
        heading = re.fullmatch(r"# (\d+)\. (.*)", page.read_text().splitlines()[0])
        assert heading, f"{page.name} begins with no number and title"
        number, title = heading.groups()
        assert int(number) == int(page.name[:4])
        assert f"| {number} | [{title}]({page.name}) |" in index, (
            f"docs/adr/README.md has no row for {page.name}"
        )


def test_files_named_in_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:domain|ports|adapters|kernels|entrypoints|scheduling)/[\w/.]+)`", text))
    assert named
    for name in named:
        folder = ROOT / "src" / "nanoserve" / ("domain" if name.startswith("scheduling") else "")
        assert (folder / name).exists(), f"architecture.md names {name}"
    for name in re.findall(r"`(nanoserve_cluster/[\w/.]+)`", text):
        assert (ROOT / "src" / name).exists(), f"architecture.md names {name}"
    for name in re.findall(r"`(\w+/[\w/]+\.py)`", text):
        assert any((ROOT / "src").glob(f"**/{name}")), f"architecture.md names {name}"


def test_where_to_change_what_names_what_is_there() -> None:
    page = ROOT / "docs" / "where-to-change.md"
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) > 8
    for section in sections:
        title, _, body = section.partition("\n")
        items = re.findall(r"^\d+\. (.*)$", body, re.MULTILINE)
        assert len(items) > 3, title
        for item in items:
            found = re.fullmatch(r"\[`([^`]+)`\]\(([^)]+)\): (.*)", item)
            assert found, f"{title}: {item} begins with no file"
            name, target, text = found.groups()
            file = (page.parent / target).resolve()
            assert file.is_file(), f"{title}: there is no {target}"
            assert file.as_posix().endswith(f"/{name}"), f"{title}: {name} leads to {target}"
            lines = file.read_text()
            for each in re.findall(r"`([^`]+)`", re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)):
                assert re.search(rf"(?<!\w){re.escape(each)}(?!\w)", lines), f"{title}: {name} has no {each}"


def test_a_sampling_parameter_is_named_where_its_section_says_and_nowhere_else() -> None:
    page = (ROOT / "docs" / "where-to-change.md").read_text()
    (section,) = re.findall(r"^## A sampling parameter$.*?(?=^## )", page, re.DOTALL | re.MULTILINE)
    listed = re.findall(r"^\d+\. \[`([^`]+)`\]", section, re.MULTILINE)
    source = ROOT / "src" / "nanoserve"
    files = [each for each in source.rglob("*") if each.suffix in {".py", ".js", ".html", ".toml"}]
    naming = {
        each.relative_to(source).as_posix() for each in files if re.search(r"\bmin_p\b", each.read_text())
    }
    assert naming == set(listed)
    assert len(listed) <= 8
