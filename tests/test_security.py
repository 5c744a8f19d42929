"""SECURITY.md says of every kind of file whether it is data or code, and so it is."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.communication.topology import topology
from simsgd.training.data.cifar import PlainUnpickler

TABLE = Path(__file__).parents[1] / "SECURITY.md"
CODE = "__import__('os').mkdir('ran')"
TINY = "--model mlp --model-config hidden=4 --dataset digits --workers 2 --epochs 1 --quiet"


class Runs:
    def __reduce__(self):
        return exec, (CODE,)


def typed(line):
    return CliRunner().invoke(main, line.split())


def checkpoint(path):
    for name in ("last.pt", "previous.pt", "best.pt"):
        torch.save({"format": "simsgd-run/1", "config": Runs()}, path / "runs/a" / name)
    typed("train --resume runs/a --epochs 2")
    typed("evaluate runs/a/best.pt")


def config(path):
    known = json.loads((path / "runs/a/config.json").read_text())
    evil = {**known, "model_config": CODE, "compressor": CODE, "dataset": CODE, "name": CODE}
    (path / "runs/a/config.json").write_text(json.dumps(evil))
    (path / "sweep.json").write_text(
        json.dumps({"format": "simsgd-sweep/1", "asked": {CODE: [CODE]}, "runs": {"a": evil}})
    )
    typed("results runs")
    typed("report . -o page.html")
    typed("train --resume runs/a --epochs 2")


def log(path):
    (path / "runs/a/log.txt").write_text(f"2026-01-01 00:00:00  verdict  {CODE}\n")
    typed("report runs -o page.html")


def tables(path):
    for name in (
        "epochs",
        "steps",
        "transfers",
        "segments",
        "layers",
        "workers",
        "partition",
        "nonfinite",
    ):
        file = path / f"runs/a/{name}.csv"
        head = file.read_text().partition("\n")[0] if file.exists() else "step,worker"
        file.write_text(f"{head}\n" + ",".join([f'"{CODE}"'] * (head.count(",") + 1)) + "\n")
    for line in (
        "results runs",
        "network runs",
        "network runs --overlap buckets",
        "plot-results runs -o a.png",
        "report runs",
    ):
        typed(line)


def times(path):
    row = {"compressor": f"{path}/mine.py:Mine", "workers": 2, "n": 100, "ms": 1.0}
    (path / "mine.py").write_text(f"{CODE}\n")
    machine = {"machine": CODE, "threads": 1, "torch": CODE}
    rows = [row, {**row, "compressor": CODE}, {**row, "compressor": "sign", "ms": CODE}]
    for number in range(len(rows)):
        text = json.dumps({"machine": machine, "rows": rows[number:]})
        (path / "times.json").write_text(text)
        typed("advise --compress-ms times.json")
        typed("advise --compress-ms times.json --compressor sign")


def edges(path):
    (path / "edges.txt").write_text(f"0 1\n{CODE}\n")
    with pytest.raises(simsgd.SettingError):
        topology(str(path / "edges.txt"), 2)


def texts(path):
    (path / "all.txt").write_text(f"{CODE} " * 400)
    typed(f"train --model lstm_lm --dataset text:{path}/all.txt --workers 2 --steps 1 --bptt 2")


def images(path):
    for part in ("train", "val"):
        (path / part / "a").mkdir(parents=True)
        (path / part / "a/0.png").write_bytes(pickle.dumps(Runs()))
    typed(f"train --model mlp --dataset imagefolder:{path} --workers 2 --steps 1")


def libsvm(path):
    for name in ("a", "a.t"):
        (path / name).write_text(f"1 1:{CODE}\n{CODE} 1:2\n")
    typed(f"train --model logistic --dataset libsvm:{path}/a --workers 2 --steps 1")


def cifar(path):
    (path / "batch").write_bytes(pickle.dumps(Runs()))
    with (path / "batch").open("rb") as file, pytest.raises(pickle.UnpicklingError):
        PlainUnpickler(file, encoding="latin1").load()


def names(path):
    for option in ("--model-config", "--compressor", "--name", "--algorithm", "--memory"):
        CliRunner().invoke(main, ["train", *TINY.split(), option, CODE])


def own_file(path):
    (path / "mine.py").write_text(f"{CODE}\n")
    typed("train --model ./mine.py --workers 2 --steps 1")


READ = {  # how each kind begins in the table, and what has it read; None: others' ground
    "code": {
        "`--model FILE.py`": own_file,
        "an installed package": None,
        "the environment's variables": None,
    },
    "data": {
        "`last.pt`": checkpoint,
        "`config.json`": config,
        "`log.txt`": log,
        "`epochs.csv`": tables,
        "times of compressors": times,
        "edge lists": edges,
        "texts": texts,
        "images": images,
        "LIBSVM files": libsvm,
        "CIFAR's batches": cifar,
        "other downloaded sets": None,
        "`--model-config`": names,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with runs/a in it."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"model": "mlp", "model_config": "hidden=4", "dataset": "digits", "workers": 2}
    simsgd.train(
        **settings, batch_size=300, epochs=1, quiet=True, runs_dir=folder / "runs", name="a"
    )
    return folder


@pytest.fixture
def here(run, tmp_path, monkeypatch):
    """A copy of it, in which everything happens."""
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_has_these_kinds():
    rows = [line.split(" | ") for line in TABLE.read_text("utf-8").splitlines() if line[:2] == "| "]
    stated = [(row[1], row[0].removeprefix("| ")) for row in rows[1:]]
    expected = [(kind, begin) for kind, kinds in READ.items() for begin in kinds]
    assert len(stated) == len(expected)
    for (kind, file), (known, begin) in zip(stated, expected, strict=True):
        assert kind == known
        assert file.startswith(begin)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("read", [read for read in READ["data"].values() if read])
def test_nothing_in_a_file_of_data_is_run(read, here):
    read(here)
    assert not (here / "ran").exists()


def test_a_file_of_code_is_run(here):
    own_file(here)
    assert (here / "ran").exists()
