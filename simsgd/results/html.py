"""Parts of a self-contained web page: no other file, no network, and no script but its own.

Every text is escaped here, so that a run may have the name `<script>`.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape

from .sortable_tables import SCRIPT, SOURCE
from .text_table import TextTable, harmless

_MANY = 9  # columns from which a table is printed on a sheet that lies across
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {SOURCE}"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #e3e7ec;
  --paper: #fff; --ground: #f5f6f8; --best: #eaf4fb; }
@media (prefers-color-scheme: dark) { :root { --ink: #dfe5ec; --soft: #9aa5b3; --line: #333c48;
  --paper: #1b2129; --ground: #12161c; --best: #17324a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 74rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
header p { color: var(--soft); margin: .2rem 0 0; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .9rem; }
h3 { font-size: .95rem; margin: 1.4rem 0 .5rem; color: var(--soft); font-weight: 600; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.3rem 1.5rem; margin-top: 1.4rem; }
.wide { overflow-x: auto; scrollbar-width: thin; background:
  linear-gradient(to right, var(--paper) 30%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 30%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: left; padding: .38rem 1.1rem .38rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: top; }
td.long { white-space: normal; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 600; }
thead th { border-bottom: 2px solid var(--line); }
th button { all: unset; cursor: pointer; }
th button::after { position: absolute; padding-left: .25em; font-size: .75em; line-height: 2; }
th button:hover, th[aria-sort] button { color: var(--ink); }
th button:focus-visible { outline: 2px solid; outline-offset: 2px; border-radius: 2px; }
th[aria-sort=ascending] button::after { content: "\\25B2" / ""; }
th[aria-sort=descending] button::after { content: "\\25BC" / ""; }
.number { text-align: right; }
tr.best td { background: var(--best); font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
.facts { columns: 20rem 3; column-gap: 2.5rem; }
.facts > div { break-inside: avoid; padding-bottom: .8rem; } .facts h3 { margin-top: 0; }
figure { margin: 0; } figure img { max-width: 100%; height: auto;
  display: block; background: #fff; border-radius: 6px; }
@media screen and (prefers-color-scheme: dark) {
  figure img { filter: invert(1) hue-rotate(180deg) brightness(1.2); mix-blend-mode: screen; } }
figcaption, .note { color: var(--soft); font-size: .88rem; margin: .5rem 0 0; }
.figures { display: grid; gap: 1.6rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
details { border-top: 1px solid var(--line); padding: .6rem 0; }
details:first-of-type { border-top: 0; }
summary { cursor: pointer; font-weight: 600; overflow-wrap: anywhere; }
summary span { color: var(--soft); font-weight: 400; }
pre { background: var(--ground); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto;
  font: .82rem/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
@media (max-width: 40rem) { main { padding: 1rem .6rem; } section { padding: 1rem .9rem; }
  h1 { font-size: 1.4rem; } td.long { min-width: 8rem; } }
@media print { :root { --ink: #000; --soft: #444; --line: #ccc; --paper: #fff; --ground: #fff;
    --best: #eee; } main { max-width: none; padding: 0; } section { border: 0; padding: 0; }
  figure, tr, .facts > div { break-inside: avoid; } .wide { overflow: visible; background: none; }
  table { font-size: .7rem; } th, td { padding-right: .6rem; white-space: normal; }
  @page across { size: landscape; }
  section:has(.many), header:has(+ section .many) { page: across; }
  .many table { font-size: min(.7rem, 13rem / var(--columns)); }
  .many th, .many td { padding-right: .3rem; overflow-wrap: anywhere; min-width: 4em; }
  td.number, .many td.number { white-space: nowrap; overflow-wrap: normal; }
  pre { white-space: pre-wrap; }
  details::details-content { content-visibility: visible; } }
"""


def page(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """Return a whole page: a title, a line below it, and the sections."""
    return harmless(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>\n"
        + "\n".join(sections)
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """Return a section: a heading, and parts made by the functions of this file."""
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def heading(text: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{escape(text)}</h3>"


def note(text: str) -> str:
    """Return a line of small print."""
    return f'<p class="note">{escape(text)}</p>'


def table(table: TextTable, best: int = -1, words: int = 0) -> str:
    """Return a table, its numbers flush right; the row `best` stands out.

    Its last columns, so many as `words`, hold no numbers. A click on a head sorts it.
    """
    numbers = range(table.names, len(table.head) - words)
    lines = (
        f"<tr{_classed('best', place == best)}>{_line(row, 'td', numbers)}</tr>"
        for place, row in enumerate(table.rows)
    )
    columns = len(table.head)
    many = f' many" style="--columns: {columns}' if columns >= _MANY else ""
    return (
        f'<div class="wide{many}"><table><thead>'
        f"<tr>{_line(table.head, 'th', numbers).replace('_', '_<wbr>')}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and their values."""
    lines = (
        f'<tr><th>{escape(name)}</th><td class="long">{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


def groups(parts: Iterable[tuple[str, str]]) -> str:
    """Return headings with a part below each, in columns where there is room."""
    inside = (f"<div>{heading(name)}{part}</div>" for name, part in parts)
    return f'<div class="facts">{"".join(inside)}</div>'


def figures(parts: Iterable[str]) -> str:
    """Return figures beside each other where there is room."""
    return f'<div class="figures">{"".join(parts)}</div>'


def figure(svg: bytes, caption: str) -> str:
    """Return a figure whose image is part of the page."""
    inside = base64.b64encode(svg).decode("ascii")
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,{inside}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def folded(name: str, summary: str, *parts: str) -> str:
    """Return parts that open when one clicks on their name."""
    head = f"<summary>{escape(name)} <span>{escape(summary)}</span></summary>"
    return f"<details>{head}{''.join(parts)}</details>"


def verbatim(text: str) -> str:
    """Return a text as it is, in a monospaced font."""
    return f"<pre>{escape(text)}</pre>"


def command(text: str) -> str:
    """Return a command, which a click selects as a whole."""
    return f'<pre class="command">{escape(text)}</pre>'


def _line(row: Sequence[str], tag: str, numbers: range) -> str:
    return "".join(
        f"<{tag}{_classed('number', place in numbers)}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(row)
    )


def _classed(name: str, holds: bool) -> str:
    return f' class="{name}"' if holds else ""
