"""The pages of docs/: each can be reached, and those about the program have all that it has."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest

import simsgd
from simsgd import methods
from simsgd.registry import find, names
from simsgd.results import tables
from simsgd.results.outcome import measures_of
from simsgd.verify.link_times import LinkRow
from simsgd.verify.verdict import VerifyRow

CHECKOUT = Path(__file__).parents[1]
DOCS = CHECKOUT / "docs"
PAGES = sorted(p for p in DOCS.glob("*.md") if not p.name.endswith(".template.md"))
ROWS = {
    "epochs.csv": tables.EpochRow,
    "steps.csv": tables.StepRow,
    "layers.csv": tables.LayerRow,
    "transfers.csv": tables.TransferRow,
    "segments.csv": tables.SegmentRow,
    "workers.csv": tables.WorkerRow,
    "partition.csv": tables.PartitionRow,
    "nonfinite.csv": tables.NonfiniteRow,
    "verify.csv": VerifyRow,
    "links.csv": LinkRow,
}
IF_ASKED = {"steps.csv": (tables.NodeStepRow, tables.NoiseStepRow)}  # columns of some runs, behind
REFERENCE = (DOCS / "reference.md").read_text() + (DOCS / "reference-methods.md").read_text()


def described(file):
    """Return the columns of a file that docs/columns.md describes, in its order."""
    text = (DOCS / "columns.md").read_text().split(f"## {file}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|.*\| \S.* \|$", text, re.MULTILINE)


@pytest.mark.parametrize("file", ROWS)
def test_every_column_of_a_table_is_described(file):
    rows = (ROWS[file], *IF_ASKED.get(file, ()))
    assert described(file) == list(dict.fromkeys(c for row in rows for c in get_type_hints(row)))


def test_what_an_evaluation_has_beside_an_epoch_is_described():
    own = [n for n in get_type_hints(tables.EvaluationRow) if n not in tables.EPOCH_COLUMNS]
    assert described("evaluations.csv") == own


def test_every_table_of_a_run_is_described():
    written = {name for name in dir(tables) if name.endswith("Row")}
    more = {"EvaluationRow", *(row.__name__ for rows in IF_ASKED.values() for row in rows)}
    described_here = {row.__name__ for row in ROWS.values()} | more
    assert written == described_here - {"VerifyRow", "LinkRow"}


def test_every_column_of_a_sweep_is_described():
    each = [f"{measure}_{what}" for measure in measures_of([]) for what in ("mean", "std")]
    assert described("sweep.csv") == ["seeds", *each]


def test_the_reference_has_every_public_name():
    own = {f"simsgd.{name}" for name in {*simsgd.__all__} - {"__version__", "ddp", "methods"}}
    of_methods = {f"simsgd.methods.{name}" for name in {*methods.__all__} - {"SettingError"}}
    shown = set(re.findall(r"heading: (\S+)", REFERENCE))
    beside = {"simsgd.ddp.register", "simsgd.ddp.Hook", "simsgd.adapters.grace"}
    assert shown == (own - {"simsgd.adapters"}) | of_methods | beside


def test_the_script_of_the_sites_search_lies_beside_its_pages():
    (name,) = re.findall(r"^  polyfills: \[(.+?)\]", (CHECKOUT / "mkdocs.yml").read_text(), re.M)
    assert "iframe-worker" in name  # else the theme takes its own, from the network
    assert (DOCS / name).is_file()


def test_every_page_is_in_the_menu_once():
    menu = (CHECKOUT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    listed = re.findall(r"[-:] (\S+\.md)$", menu, re.MULTILINE)
    beside = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
    assert sorted(listed) == sorted(beside | {page.name for page in PAGES})


def test_every_page_is_reached_by_links_from_the_readme():
    reached, found = set(), {CHECKOUT / "README.md"}
    while found:
        page = found.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^):#\s]+\.md)(?:#[^)]*)?\)", page.read_text())
        found |= {(page.parent / link).resolve() for link in links} - reached
    assert {page.name for page in reached} >= {page.name for page in PAGES}


def test_every_paper_of_a_method_is_on_the_pages_about_methods():
    pages = ("papers.md", "compressors.md", "algorithms.md", "methods.md")
    text_of_all = "".join((DOCS / page).read_text() for page in pages)
    kinds = ("compressor", "memory", "algorithm", "method", "aggregation", "outer-optimizer")
    docs = [find(kind, name).__doc__ or "" for kind in kinds for name in names(kind)]
    cited = {link for text in docs for link in re.findall(r"arxiv\.org/abs/[\d.]+\d", text)}
    assert len(cited) > 25
    assert {link for link in cited if link not in text_of_all} == set()


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("federated", "algorithms"),
        ("non-IID", "algorithms"),
        ("error feedback", "compressors"),
        ("convergence", "compressors"),
        ("low-communication", "methods"),
    ],
)
def test_words_that_people_search_for_are_in_the_readme_and_on_their_page(word, page):
    assert word in (CHECKOUT / "README.md").read_text()
    assert word in (DOCS / f"{page}.md").read_text()


def test_the_changelog_says_what_a_release_has_and_not_how_it_came_to_have_it():
    first = (CHECKOUT / "CHANGELOG.md").read_text().split("\n## 0.1.0\n")[1]
    assert len(first.splitlines()) <= 32
