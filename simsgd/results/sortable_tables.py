"""The script of a page whose tables are sorted by a click on a head, and the hash that allows it.

A column in which every cell begins with a number is sorted by these numbers, in their units; any
other by its text, in which 10 comes after 2. Cells without a value stay at the end.
"""

import base64
import hashlib

SCRIPT = r"""
"use strict";
const BINARY = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
const UNITS = { ...BINARY, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 };
const NUMBER = /^([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?inf)(?![\w.:])\s*([A-Za-z]*)/;
const EMPTY = new Set(["", "-", "none", "nan", "never"]);

function numberOf(text) {
  const found = NUMBER.exec(text);
  if (!found) return null;
  const digits = found[1].replaceAll(",", "").replace("inf", "Infinity");
  return Number(digits) * (UNITS[found[2]] ?? 1);
}

function compareTexts(a, b) {
  const parts = (text) => text.split(/(\d+(?:\.\d+)?)/);
  const [first, second] = [parts(a), parts(b)];
  for (let i = 0; i < Math.min(first.length, second.length); i++) {
    const order = i % 2 ? first[i] - second[i] : first[i].localeCompare(second[i]);
    if (order) return order;
  }
  return first.length - second.length;
}

function sort(table, head, place) {
  const down = head.getAttribute("aria-sort") === "ascending";
  const rows = [...table.tBodies[0].rows];
  const text = new Map(rows.map((row) => [row, row.cells[place].textContent.trim()]));
  const [empty, full] = [[], []];
  for (const row of rows) (EMPTY.has(text.get(row)) ? empty : full).push(row);
  const number = new Map(full.map((row) => [row, numberOf(text.get(row))]));
  const numbers = full.every((row) => number.get(row) !== null);
  full.sort((a, b) => {
    const order = numbers ? number.get(a) - number.get(b) : compareTexts(text.get(a), text.get(b));
    return down ? -order : order;
  });
  table.tBodies[0].append(...full, ...empty);
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

for (const table of document.querySelectorAll("table")) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) continue;
  for (const [place, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head, place));
    head.append(button);
  }
}
"""
SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
