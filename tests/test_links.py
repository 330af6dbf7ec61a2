"""Links between documents lead to a file or heading; the README opens with few doors."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("config/*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.*)$", CODE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document):
    lost = []
    for target in LINK.findall(CODE.sub("", document.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        if target.startswith(("http", "mailto")):
            continue
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            lost.append(target)
    assert lost == []


def test_the_readme_opens_with_at_most_five_doors():
    opening = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    doors = re.findall(r"^\| (?!you have)", opening, re.MULTILINE)
    assert 0 < len(doors) <= 5


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/number.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_of_the_code_names_are_there(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.(?:py|smk|yaml))(?:::\w+)?`", text)) - {
        "config/model/NAME.yaml"
    }
    folders = ("src", "scripts", "workflow", "tests", "config")
    files = {path.as_posix() for each in folders for path in (ROOT / each).rglob("*.*")}
    assert [file for file in named if not any(path.endswith(f"/{file}") for path in files)] == []
