"""Hooks of mkdocs: pages that lie outside docs/, and those that the program writes.

README.md is the first page; CONTRIBUTING.md, CHANGELOG.md and SECURITY.md are pages too, links
made to fit. `<!-- options -->` on a page becomes the options of every command.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).parents[1]
PAGES = {  # of the checkout's top, and what each is in the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
}
OTHERS = ("CITATION.cff", "LICENSE", "notebooks/*.ipynb")
OPTIONS = "<!-- options -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside docs/: pages, notebooks, the licence and how to cite."""
    for path, page in PAGES.items():
        text = linked((CHECKOUT / path).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    for path in sorted(path for pattern in OTHERS for path in CHECKOUT.glob(pattern)):
        name = path.relative_to(CHECKOUT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the options of all commands where a page asks for them."""
    return markdown.replace(OPTIONS, options()) if OPTIONS in markdown else markdown


def linked(text: str) -> str:
    """Return a page of the checkout's top with links as from docs/.

    >>> linked("[a](docs/a.md#b), ![c](docs/c.png)")
    '[a](a.md#b), ![c](c.png)'
    """
    return re.sub(r"\]\(docs/", "](", text)


def options() -> str:
    """Return a table of the options of each command; `sweep` has those that `train` lacks."""
    from simsgd.cli import main

    train = {p.name for p in main.commands["train"].params}
    return "\n".join(
        section(path, command, train if path == "sweep" else frozenset())
        for path, command in commands(main)
    )


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield the words of each command, and the command."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def section(path: str, command: click.Command, known: "set[str | None] | frozenset[str]") -> str:
    """Return a heading, what a command does, and a table of its options but those `known`."""
    with click.Context(command, info_name=f"simsgd {path}") as context:
        rows = [row(p, context) for p in command.params if p.name not in known]
        parts = [f"### simsgd {path}", command.get_short_help_str(200)]
        if known:
            parts.append("It takes all settings of `simsgd train`, with several values each.")
        table = ["| option | what it does |", "|---|---|", *filter(None, rows)]
        return "\n\n".join([*parts, "\n".join(table)]) + "\n"


def row(parameter: click.Parameter, context: click.Context) -> str:
    """Return the row of an option or argument; nothing for a hidden option."""
    if isinstance(parameter, click.Argument):
        return f"| `{parameter.make_metavar(context)}` | |"
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    name, text = record
    return f"| `{name}` | {text.replace('|', '&#124;').replace('<', '&lt;')} |"
