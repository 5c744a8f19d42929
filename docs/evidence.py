"""Write docs/evidence.md: what was measured on real data, beside what was published.

python docs/evidence.py [RUNS]

takes the ended runs of a folder that run_experiments.sh wrote into docs/evidence/runs.csv and
epochs.csv, beside those that are there, and then writes from these two the page, its figures, and
the tables between `<!-- evidence: NAME -->` and `<!-- end -->` on other pages.
"""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import simsgd
from simsgd.results.figures.canvas import NotebookFigure
from simsgd.results.figures.legends import draw_legend
from simsgd.results.figures.pareto import frontier
from simsgd.results.figures.point_labels import Point, name_nearby
from simsgd.results.figures.style import GRAY, marker_of, save, screen_look
from simsgd.results.figures.ticks import set_ticks

DOCS = Path(__file__).parent
CHECKOUT = DOCS.parent
STORE = DOCS / "evidence"
OTHER_PAGES = (CHECKOUT / "README.md", DOCS / "experiments.md")
IN_README = (  # of two groups; the pages have all
    "evidence-dgc-dense", "evidence-dgc-none", "evidence-dgc-prune",
    "lowcomm-adamw", "lowcomm-diloco",
)  # fmt: skip
PREFIXES = ("evidence-", "lowcomm-")  # of the experiments of this page
GROUPS = ("dgc", "layers", "text", "gossip", "rank", "batch", "lowcomm")
RUN = ["experiment", "seed"]
RUN_COLUMNS = [*RUN, "options", "seconds", "most_step_bytes", "wan_seconds", "gbe_seconds", "torch"]
EPOCH_COLUMNS = [
    *RUN, "epochs", "step", "train_loss", "val_loss", "val_error1", "payload_bytes", "dense_bytes",
    "consensus_distance",
]  # fmt: skip
NAMES = {"gpt": "loss", "lstm_lm": "perplexity"}  # of measures by model; all others: error
HEADS = {"error": "error@1 (%)", "perplexity": "perplexity", "loss": "loss"}
IN_WORDS = {"error": "error@1 {} %", "loss": "loss {}"}  # where a table has several measures
DIGITS = {"error": 1, "perplexity": 1, "loss": 3}
WORK = {"compute_ms": 12, "compress_ms": 0}  # of a worker in a step, on an idle core, for all alike
NETWORKS = {"wan": "seconds on wan", "gbe": "seconds on 1gbe"}
SPREAD = {"error": 0.5, "perplexity": 1.0, "loss": 0.01}  # that seeds alone may make


def experiments():
    """Return the options of each experiment of this page, by name."""
    return {n: text for n, text in all_experiments().items() if n.startswith(PREFIXES)}


def all_experiments():
    """Return the options of each experiment of run_experiments.sh, by name."""
    script = [str(CHECKOUT / "run_experiments.sh"), "list"]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    named = (line.split(maxsplit=1) for line in lines)
    prefix = "simsgd train "
    return {name: command.removeprefix(prefix).strip() for name, command in named}


def group_of(name):
    """Return an experiment's group: `dgc` of evidence-dgc-dense, `lowcomm` of lowcomm-adamw."""
    return name.removeprefix("evidence-").split("-")[0]


def short(name):
    """Return an experiment's name within its group."""
    return name.removeprefix("evidence-").split("-", 1)[1]


def pairs(options):
    """Return options as (flag, value) pairs, the value empty where there is none.

    >>> pairs("--workers 2 --scale-epochs")
    [('--workers', '2'), ('--scale-epochs', '')]
    """
    return re.findall(r"(--\S+)(?: (?!--)(\S+))?", options)


def take(folder):
    """Add the ended runs of a folder to runs.csv and epochs.csv, in place of the same ones there.

    Raises `ValueError` for a run that other options made than those of run_experiments.sh.
    """
    runs, epochs = (stored(name) for name in ("runs", "epochs"))
    for path in sorted(folder.iterdir()):
        name, _, seed = path.name.rpartition("-seed")
        options = experiments().get(name)
        run = simsgd.Run(path) if options and (path / "epochs.csv").exists() else None
        if run is None or not ended(run):
            continue
        for flag, value in pairs(options):
            setting = flag.removeprefix("--").replace("-", "_")
            if str(run.config[setting]) != (value or "True"):
                raise ValueError(f"{path} has {setting} {run.config[setting]}, not {value}")
        own = {"experiment": name, "seed": int(seed)}
        prices = simsgd.network(path, ["wan", "1gbe"], **WORK).set_index("network")["seconds"]
        row = {
            "options": options,
            "seconds": round(run.seconds, 1),
            "most_step_bytes": int(run.steps["payload_bytes_max"].max()),
            "wan_seconds": round(prices["wan"], 2),
            "gbe_seconds": round(prices["1gbe"], 2),
            "torch": run.config["environment"]["torch"],
        }
        evaluated = run.evaluations.assign(**own).reindex(columns=EPOCH_COLUMNS)
        runs = joined(runs, pd.DataFrame([own | row]), own)
        epochs = joined(epochs, evaluated, own)
    for name, table in (("runs", runs), ("epochs", epochs)):
        table.sort_values(RUN, kind="stable").to_csv(
            STORE / f"{name}.csv", index=False, float_format="%.6g"
        )


def ended(run):
    """Return whether a run has made all its steps."""
    first, _, last = run.done.removesuffix(" steps").partition("/")
    return len(run.evaluations) > 0 and first == last


def joined(table, rows, own):
    """Return a table with a run's rows in place of those it has of the same run."""
    same = (table["experiment"] == own["experiment"]) & (table["seed"] == own["seed"])
    kept = table[~same]
    return rows if kept.empty else pd.concat([kept, rows])


def stored(name):
    """Return runs.csv or epochs.csv, with no row if it is not there yet."""
    path = STORE / f"{name}.csv"
    columns = RUN_COLUMNS if name == "runs" else EPOCH_COLUMNS
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=columns)


def results(epochs, runs):
    """Return a dict for each experiment with a run: what its seeds ended with, and their means."""
    found = {}
    for name, table in epochs.groupby("experiment", sort=False):
        seeds = [rows for _, rows in table.groupby("seed")]
        last = pd.DataFrame([rows.iloc[-1] for rows in seeds])
        before = pd.DataFrame([rows.iloc[-2] for rows in seeds if len(rows) > 1])
        own = runs[runs["experiment"] == name]
        measure = measure_of(own["options"].iloc[0])
        values = [float(v) for v in measured(last, measure)]
        sent = last["payload_bytes"].mean()
        dense = last["dense_bytes"].mean()
        sent_before, dense_before = (
            before[column].mean() if len(before) else 0
            for column in ("payload_bytes", "dense_bytes")
        )
        found[name] = {
            "measure": measure,
            "values": values,
            "mean": sum(values) / len(values),
            "sent": sent,
            "ratio": dense / sent,
            "steady": (dense - dense_before) / (sent - sent_before),
            "consensus": last["consensus_distance"].mean(),
            "seconds": own["seconds"].mean(),
            "most": own["most_step_bytes"].max(),
            "wan": own["wan_seconds"].mean(),
            "gbe": own["gbe_seconds"].mean(),
        }
    return found


def measure_of(options):
    """Return what an experiment is measured by: error, perplexity or loss."""
    return NAMES.get(dict(pairs(options))["--model"], "error")


def measured(table, measure):
    """Return the measure's values in a table of evaluations."""
    if measure == "error":
        return table["val_error1"]
    return table["val_loss"].map(math.exp) if measure == "perplexity" else table["val_loss"]


def markdown(head, rows):
    """Return a table, empty cells for None."""
    lines = [head, ["---"] * len(head), *rows]
    shown = ([("" if cell is None else str(cell)) for cell in line] for line in lines)
    return "\n".join(re.sub(r"  +", " ", "| " + " | ".join(line) + " |") for line in shown)


def shared(group, listed):
    """Return the options that all experiments of a group have, in words."""
    own = [pairs(options) for name, options in listed.items() if group_of(name) == group]
    return in_words(pair for pair in own[0] if all(pair in other for other in own))


def in_words(options):
    """Return (flag, value) pairs as they are typed."""
    return " ".join(f"{flag} {value}".strip() for flag, value in options)


def in_short_heads(measure):
    """Return the heads of the cells of `in_short`."""
    return ["seeds", HEADS[measure], "least to most", "sent (MiB)", "ratio", "ratio at the end"]


def in_short(result):
    """Return the cells that say what an experiment came to."""
    digits, values = DIGITS[result["measure"]], result["values"]
    span = f"{min(values):.{digits}f} to {max(values):.{digits}f}" if len(values) > 1 else None
    sent = f"{result['sent'] / 2**20:.2f}"
    ratios = [f"{result[name]:.1f}" for name in ("ratio", "steady")]
    return [len(values), f"{result['mean']:.{digits}f}", span, sent, *ratios]


def group_table(group, listed, found):
    """Return the table of a group: a row for each experiment, its cells empty until measured."""
    common = pairs(shared(group, listed))
    names = [name for name in listed if group_of(name) == group]
    rows = []
    for name in names:
        added = in_words(pair for pair in pairs(listed[name]) if pair not in common)
        row = [f"`{name}`", f"`{added}`" if added else ""]
        if name in found:
            r = found[name]
            row += [*in_short(r), f"{r['consensus']:.2f}", f"{r['seconds']:.0f}"]
        else:
            row += [None] * 8
        rows.append(row)
    head = ["experiment", "options beside", *in_short_heads(measure_of(listed[names[0]]))]
    return markdown([*head, "consensus", "time (s)"], rows)


def readme_table(found):
    """Return the README's table: a row for each of `IN_README`, of two groups and measures."""
    rows = []
    for name in IN_README:
        seeds, mean, span, *sent = in_short(found[name])
        end = IN_WORDS[found[name]["measure"]].format(mean)
        rows.append([f"`{name}`", seeds, end, span, *sent])
    return markdown(["experiment", "seeds", "at the end", *in_short_heads("error")[2:]], rows)


def lowcomm_table(epochs, listed, found):
    """Return what each method sends, and what it has sent when it comes to a loss all came to."""
    names = [name for name in listed if group_of(name) == "lowcomm"]
    tables = {n: epochs[epochs["experiment"] == n].query("seed == 0") for n in names if n in found}
    goal = max((table["val_loss"].min() for table in tables.values()), default=math.nan)
    rows = []
    for name in names:
        row = [f"`{name}`", *[None] * 7]
        if name in found:
            r, table = found[name], tables[name]
            reached = table[table["val_loss"] <= goal].iloc[0]
            until = [f"{reached['payload_bytes'] / 2**20:.2f}", int(reached["step"])]
            sent = [f"{r['sent'] / 2**20:.2f}", f"{r['most'] / 2**10:.1f}"]
            row[1:] = [f"{r['mean']:.3f}", *sent, *until, *(f"{r[n]:.0f}" for n in NETWORKS)]
        rows.append(row)
    heads = ["loss", "sent (MiB)", "most in a step (KiB)", f"sent until {goal:.3f} (MiB)"]
    return markdown(["experiment", *heads, "steps until then", *NETWORKS.values()], rows)


def claims(group, found):
    """Return a table of a group's claims, from claims.csv, and whether they show.

    One shows if the first experiment's measure less the second's is from `least` to `most`, unless
    a limit is so near that another seed may be on its other side.
    """
    own = {short(name): r for name, r in found.items() if group_of(name) == group}
    table = pd.read_csv(STORE / "claims.csv").fillna({"least": -math.inf}).query("group == @group")
    rows = []
    for claim in table.itertuples():
        row = [claim.published, claim.source, f"`{claim.first}`, `{claim.second}`", None, None]
        if claim.first in own and claim.second in own:
            first, second = (own[name]["mean"] for name in (claim.first, claim.second))
            measure = own[claim.first]["measure"]
            inside = min(first - second - claim.least, claim.most - (first - second))
            shows = (
                "too close" if abs(inside) < SPREAD[measure] else "yes" if inside > 0 else "**no**"
            )
            digits = DIGITS[measure]
            row[3:] = [f"{first:.{digits}f}, {second:.{digits}f}", shows]
        rows.append(row)
    return markdown(["published", "in", "compared", "measured", "shows here"], rows)


@screen_look()
def draw(group, found):
    """Draw each experiment of a group as `plot-results --kind pareto` does."""
    own = {short(name): r for name, r in found.items() if group_of(name) == group}
    figure = NotebookFigure(7, 4.2)
    axes = figure.subplots()
    points = []
    for place, (name, r) in enumerate(own.items()):
        sent = r["sent"]
        points.append(Point(name, sent, r["mean"], [sent], r["values"], marker_of(place)))
    corners = frontier(points)
    axes.plot(*zip(*corners, strict=True), color=GRAY, linewidth=1, zorder=2)
    for point in points:
        look, color = point.look, point.look.color
        face = color if (point.x, point.y) in corners else "white"
        axes.plot([point.x] * 2, [min(point.ys), max(point.ys)], color=color, linewidth=1)
        axes.plot(point.x, point.y, look.marker, color=color, mfc=face, markersize=6, zorder=4)
    measure = next(iter(own.values()))["measure"]
    axes.set(xscale="log", xlabel="bytes sent per worker", ylabel=HEADS[measure])
    axes.margins(0.18, 0.12)
    set_ticks(axes.xaxis, np.array([point.x for point in points]), in_bytes=True)
    if not name_nearby(axes, points, corners):
        figure.set_layout_engine("constrained")
        draw_legend(figure, [p.look for p in points], [p.name for p in points], below=False)
    save(figure, STORE / f"{group}.png", 160)


def pages():
    """Return the text of each page that has tables of what was measured, by its path."""
    listed, epochs, runs = experiments(), stored("epochs"), stored("runs")
    found = {n: r for n, r in results(epochs, runs).items() if n in listed}
    told = {"rows": len(found), "groups": len({group_of(name) for name in found})}
    told |= {"all": len(listed), "torch": ", ".join(sorted(set(runs["torch"])))}
    for group in GROUPS:
        own = [r for name, r in found.items() if group_of(name) == group]
        told[f"{group}_options"] = shared(group, listed)
        told[f"{group}_table"] = group_table(group, listed, found)
        told[f"{group}_claims"] = claims(group, found)
        told[f"{group}_figure"] = (
            f"![{own[0]['measure'].capitalize()} at the end against bytes sent per worker, a point "
            f"for each experiment](evidence/{group}.png)" if own else ""
        )  # fmt: skip
    template = (DOCS / "evidence.template.md").read_text()
    text = {DOCS / "evidence.md": re.sub(r"\n{3,}", "\n\n", template.format(**told))}
    marked = {"readme": readme_table(found), "lowcomm": lowcomm_table(epochs, listed, found)}
    for path in OTHER_PAGES:
        text[path] = path.read_text()
        for name, table in marked.items():
            begin, end = f"<!-- evidence: {name} -->\n", "\n<!-- end -->"
            where = re.escape(begin) + ".*?" + re.escape(end)
            text[path] = re.sub(where, lambda _, t=begin + table + end: t, text[path], flags=re.S)
    return text


def main(arguments):
    """Take the runs of a folder, if one is given, and write all pages and figures."""
    for folder in arguments:
        take(Path(folder))
    for path, text in pages().items():
        path.write_text(text)
    found = results(stored("epochs"), stored("runs"))
    for group in {group_of(name) for name in found}:
        draw(group, found)


if __name__ == "__main__":
    main(sys.argv[1:])
