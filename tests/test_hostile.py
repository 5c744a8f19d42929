"""Files made to harm: a line says what is wrong; no code is run, nothing is written outside."""

import json
import os
import pickle
import shutil

import pytest
import torch
from click.testing import CliRunner

from simsgd.cli import main

TINY = "train --model mlp --model-config hidden=4 --dataset digits --workers 4 --epochs 1 --quiet"
READERS = ("results RUN", "report RUN -o page.html", "plot-results RUN -o a.png", "network RUN")
GO_ON = "train --resume RUN --epochs 2 --quiet"
DEEP = 10**6


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = CliRunner().invoke(main, [*TINY.split(), "--name", "a", "--runs-dir", str(folder)])
    assert done.exit_code == 0, done.output
    return folder / "a"


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


def call(line):
    return CliRunner().invoke(main, line.replace("RUN", "runs/a").split())


def refused(line, words=""):
    done = call(line)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
    assert words in done.stderr


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize(
    "write", [torch.save, lambda bomb, path: path.write_bytes(pickle.dumps(bomb))]
)
@pytest.mark.parametrize("line", ["evaluate RUN", GO_ON])
def test_a_checkpoint_runs_no_code(run, tmp_path, write, line):
    write({"format": "simsgd-run/1", "config": Bomb(tmp_path / "mark")}, run / "last.pt")
    refused(line, "last.pt")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "odd",
    [
        {"format": "simsgd-run/1"},
        {"config": [1], "model": 3, "simulator": 3},
        {"simulator": {"parameters": 3}, "config": None},
        {"tally": {"a": 1}, "config": {"workers": "x"}},
        {"epoch": "x", "model": {"a": 1}},
    ],
)
def test_a_checkpoint_of_odd_parts_is_refused(run, odd):
    own = {} if len(odd) == 1 else torch.load(run / "last.pt", weights_only=True)
    torch.save({**own, **odd}, run / "last.pt")
    refused("evaluate RUN")
    refused(GO_ON)


@pytest.mark.parametrize(
    "text",
    ['{"a":' * DEEP, "[" * DEEP + "]" * DEEP, "[1, 2]", "", "nul\0", '{"model": {"a": [1]}}'],
)
def test_a_config_that_is_none_is_refused_by_every_command(run, text):
    (run / "config.json").write_text(text)
    for line in (*READERS, GO_ON):
        refused(line, "config.json")


@pytest.mark.parametrize("workers", ["x", float("nan"), 10**30, 0, None])
def test_a_config_with_odd_workers_is_refused(run, workers):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "workers": workers}))
    refused("network RUN", "without a number of workers")
    refused(GO_ON, "workers")


@pytest.mark.parametrize("setting", ["data_dir", "runs_dir", "model", "prune", "seed", "lr"])
def test_a_config_with_a_setting_of_another_kind_is_refused(run, setting):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, setting: True}))
    refused(GO_ON, f'--resume has "{setting}": True, which must be')


@pytest.mark.slow
def test_a_config_cannot_name_another_folder(run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    away = {"name": "../../out", "runs_dir": "../.."}
    (run / "config.json").write_text(json.dumps({**config, **away}))
    around = {*tmp_path.parent.iterdir()}
    assert call(GO_ON).exit_code == 0
    assert {*tmp_path.parent.iterdir()} == around
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    assert json.loads((run / "config.json").read_text())["name"] == "a"


@pytest.mark.slow
def test_a_report_shows_what_a_config_holds_as_text(run):
    config = json.loads((run / "config.json").read_text())
    evil = "<script>alert(1)</script>"
    (run / "config.json").write_text(json.dumps({**config, "dataset": evil, "model": evil}))
    assert call("report RUN -o page.html").exit_code == 0
    assert evil not in (run.parents[1] / "page.html").read_text()


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 1000 + b"\n",
        b"\xff\xfe\n",
        b"a,b\n1,2,3,4\n1\n",
        b"1,2\n3,4\n",
        b"epoch,step\n" + b"9" * 10**6 + b",1\n",
        b"epoch,step\n1,1\n",
        b"step,epoch\n1,1\n",
    ],
)
@pytest.mark.parametrize(
    ("table", "lines"),
    [("epochs", READERS[:3]), ("steps", READERS[3:]), ("transfers", READERS[3:])],
)
def test_a_table_that_is_none_is_refused(run, table, content, lines):
    (run / f"{table}.csv").write_bytes(content)
    for line in lines:
        refused(line)


@pytest.mark.parametrize(
    ("file", "change", "line", "words"),
    [
        ("config.json", ('"workers": 4', '"workers": "4"'), READERS[3], "a number of workers"),
        ("transfers.csv", ("all-reduce", "pigeon"), READERS[3], "is not known, pigeon"),
        ("transfers.csv", ("all-reduce", "5"), READERS[3], "is not known, 5"),
        ("evaluations.csv", ("", "epoch\n"), READERS[0], "lacks the columns step, payload_bytes"),
        *(
            ("epochs.csv", ("epoch,step", "step,step"), line, "it has the column step twice, got")
            for line in READERS[:3]
        ),
        ("steps.csv", ("step,epoch", "step,step"), READERS[3], "it has the column step twice, got"),
        (
            "layers.csv",
            ("", "step,segment\n1,a\n"),
            f"{READERS[2]} --kind layers",
            "the columns el",
        ),
    ],
)
def test_a_part_of_a_run_that_is_none_is_refused(run, file, change, line, words):
    path = run / file
    text = path.read_text() if path.exists() else ""
    path.write_text(text.replace(*change) if text else change[1])
    refused(line, words)


def test_an_odd_environment_and_a_graph_of_too_many_workers_are_refused(run):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "environment": "x"}))
    refused(READERS[1], "does not hold settings by name")
    many = {"workers": 10**7, "topology": "ring", "used": {"topology": "ring"}}
    (run / "config.json").write_text(json.dumps({**config, **many}))
    refused(
        "plot-results RUN -o a.png --kind topology", "too many to draw as a graph: at most 1024"
    )


@pytest.mark.parametrize("parts", [{}, {"asked": 3, "runs": {}}, {"asked": {}, "runs": {"a": 5}}])
@pytest.mark.parametrize(
    "line", ["report . -o page.html", "sweep --lr 0.1,0.2 --dataset digits --runs-dir ."]
)
def test_a_sweep_of_odd_parts_is_refused(run, tmp_path, line, parts):
    (tmp_path / "sweep.json").write_text(json.dumps({"format": "simsgd-sweep/1", **parts}))
    refused(line, "is damaged: it does not hold settings by name")


def edges(lines):
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (edges(["0 1", "1 1000000000"]), "between two of the workers 0 to 3 in entry 2"),
        (edges(f"{i} {i + 1}" for i in range(10**5)), "in entry 4"),
        (b"0 1e400\n", "in entry 1"),
        (b"0 1\n1 nan\n", "in entry 2"),
        (b"\0\xff", "cannot be read as numbers"),
    ],
)
def test_an_odd_list_of_edges_is_refused(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").write_bytes(content)
    refused(f"{TINY} --algorithm dpsgd --topology edges.txt", words)
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe bad" * 100, "not UTF-8"),
        (b"x" * 10**6, "leaves no word"),
        (b"", "text"),
        (b"\0" * 1000, "leaves no word"),
    ],
)
def test_an_odd_text_is_refused(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(content)
    refused("train --dataset text:text.txt --workers 2 --quiet", words)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0 1:1 999999999999:2\n1 1:1\n", "cannot be read"),
        ("0 1:1 2000000000:2\n1 1:1\n", "has 2,000,000,000 features"),
        ("0 1:nan\n1 2:1\n", "not finite"),
        ("0 1:1e999\n1 1:1\n", "not finite"),
        ("0 -3:1\n1 1:1\n", "cannot be read"),
        ("\0\0:1\n", "cannot be read"),
    ],
)
def test_odd_numbered_features_are_refused_without_taking_their_memory(
    tmp_path, monkeypatch, content, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.svm").write_text(content * 8)
    refused("train --model logistic --dataset libsvm:rows.svm --workers 2 --quiet", words)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.svm"]


ESCAPES = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.slow
def test_a_name_of_bytes_that_are_no_text_is_shown(run, tmp_path):
    shutil.copytree(run, tmp_path / "runs" / os.fsdecode(b"a\xff"))
    lines = "results runs", "network runs", "report runs -o page.html", "plot-results runs -o a.png"
    for line in lines:
        assert call(line).exit_code == 0, line
    assert "a?" in call("results runs").output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")  # drawn as a box in figures
def test_a_name_with_escape_sequences_is_shown_harmless(run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    names = {"dataset": f"d{ESCAPES}", "model": f"m{ESCAPES}", "compressor": f"c{ESCAPES}"}
    (run / "config.json").write_text(json.dumps({**config, **names}))
    shutil.copytree(run, tmp_path / "runs" / f"b{ESCAPES}")
    for line in ("results runs", "network runs", "report runs -o page.html"):
        done = call(line)
        assert done.exit_code in (0, 2), repr(done.exception)
        assert not {"\x1b", "\x07"} & {*done.output}, line
    assert not {"\x1b", "\x07"} & {*(tmp_path / "page.html").read_text()}


@pytest.mark.slow
def test_a_sweeps_file_leads_no_write_and_no_read_out_of_its_folder(run, tmp_path):
    folder = tmp_path / "runs"
    (tmp_path / "outside").mkdir()
    definition = {
        "format": "simsgd-sweep/1",
        "asked": {"workers": [2]},
        "runs": {"../outside/a": {"workers": 2}, "/tmp/x": {"workers": 2}},
    }
    (folder / "sweep.json").write_text(json.dumps(definition))
    around = {*tmp_path.rglob("*")}
    for line in ("results runs", "report runs -o page.html"):
        assert call(line).exit_code in (0, 2)
    assert {*tmp_path.rglob("*")} - around <= {tmp_path / "page.html"}


@pytest.mark.slow
def test_a_link_in_a_run_folder_leads_no_write_out_of_it(run, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("epochs.csv", "steps.csv", "config.json", "last.pt", "best.pt"):
        shutil.move(run / name, outside / name)
        (run / name).symlink_to(outside / name)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    call(GO_ON)
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
