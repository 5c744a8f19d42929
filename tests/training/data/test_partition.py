import itertools
import math

import pytest
import torch

import simsgd
from simsgd.config import Config
from simsgd.results.tables import PARTITION_COLUMNS, WORKER_COLUMNS, read_table
from simsgd.settings import SettingError
from simsgd.training.checkpoint import load_checkpoint
from simsgd.training.data.partition import by_class, epoch_index, parted, table_of_classes
from simsgd.training.experiment import Experiment

LABELS = torch.arange(1000) % 10  # 100 of each of 10 classes
FIXED = ["iid-fixed", "sorted", "shards:2", "dirichlet:0.1", "dirichlet:100"]
RUN = {
    "model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 8,
    "batch_size": 16, "epochs": 2, "device": "cpu", "quiet": True, "dtype": "float64",
}  # fmt: skip


@pytest.mark.parametrize("spec", FIXED)
@pytest.mark.parametrize("workers", [1, 3, 16])
def test_every_sample_is_one_workers_and_all_have_as_many(spec, workers):
    parts = parted(spec, LABELS, workers, seed=0)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= (2 if spec == "shards:2" else 1)
    assert len(torch.cat(parts)) == len(torch.cat(parts).unique()) == 1000


UNEQUAL = ["quantity:0.05", "quantity:5", "label-dirichlet:0.01", "label-dirichlet:2"]


@pytest.mark.parametrize("spec", UNEQUAL)
@pytest.mark.parametrize("workers", [1, 3, 16, 900])
def test_shares_of_chance_leave_out_no_sample_and_no_worker(spec, workers):
    parts = parted(spec, LABELS, workers, seed=0)
    assert len(torch.cat(parts)) == len(torch.cat(parts).unique()) == 1000
    assert min(map(len, parts)) >= 1


def test_the_larger_alpha_the_more_alike_are_workers():
    def spread(spec):
        sizes = torch.tensor([len(part) for part in parted(spec, LABELS, 10, 0)]).double()
        return float(sizes.std() / sizes.mean())

    def classes(spec):
        return float((by_class(parted(spec, LABELS, 10, 0), LABELS, 10) > 0).double().sum(1).mean())

    assert spread("quantity:0.1") > 1 > spread("quantity:10") > 0.1 > spread("quantity:10000")
    assert spread("label-dirichlet:0.05") > 0.4
    assert classes("quantity:1") > 8 > 6 > classes("label-dirichlet:0.1")


@pytest.mark.parametrize("spec", [*FIXED, *UNEQUAL])
def test_a_partition_is_a_function_of_the_seed(spec):
    first, again, other = (parted(spec, LABELS, 8, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    same = all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert same == (spec == "sorted")


def test_sorted_workers_see_few_classes():
    table = by_class(parted("sorted", LABELS, 20, 0), LABELS, 10)
    assert (table > 0).sum(1).tolist() == [1] * 20
    assert table.sum(0).tolist() == [100] * 10


def test_two_shards_are_at_most_four_classes():
    labels = torch.arange(1024) % 8
    table = by_class(parted("shards:2", labels, 16, 0), labels, 8)
    assert (table > 0).sum(1).max() <= 2


def test_the_smaller_alpha_the_fewer_classes_a_worker_has():
    def largest_share(alpha):
        table = by_class(parted(f"dirichlet:{alpha}", LABELS, 10, 0), LABELS, 10)
        return float((table.amax(1) / table.sum(1)).mean())

    assert largest_share(0.01) > 0.6 > 0.5 > largest_share(1) > 0.2 > largest_share(1000)


def test_iid_is_none_and_dealt_out_in_each_epoch():
    assert parted("iid-reshuffled", LABELS, 8, 0) is None


def test_an_epoch_goes_through_a_workers_own_samples_once():
    parts = parted("sorted", LABELS, 10, 0)
    rows = epoch_index(parts, 100, seed=0, epoch=0)
    for row, part in zip(rows, parts, strict=True):
        assert torch.equal(row.sort().values, part.sort().values)
    assert not torch.equal(rows, epoch_index(parts, 100, seed=0, epoch=1))


def test_who_has_few_samples_goes_through_them_again():
    row = epoch_index([torch.tensor([5, 6, 7])], 8, seed=0, epoch=0)[0]
    assert row[:3].sort().values.tolist() == row[3:6].sort().values.tolist() == [5, 6, 7]
    assert len(row) == 8


def test_worker_w_gets_its_own_samples_in_every_batch():
    experiment = Experiment.of(Config(**RUN, partition="sorted"))
    table = by_class(experiment.parts, experiment.dataset.train.labels, 10)
    seen = torch.zeros_like(table)
    for _, labels in experiment.epoch_batches(0):
        for worker, own in enumerate(labels.unflatten(0, (8, 16))):
            seen[worker] += own.bincount(minlength=10)
    assert (seen <= table).all()
    assert seen.sum() == experiment.batches * 8 * 16


@pytest.mark.slow
def test_the_table_is_logged_and_kept(tmp_path):
    run = simsgd.train(**RUN, runs_dir=tmp_path, partition="dirichlet:0.3")
    kept = read_table(run.folder / "partition.csv", PARTITION_COLUMNS)
    assert len(kept) == 8 * 10
    assert "samples by worker and class" in run.log
    first = kept[kept["worker"] == 0]["samples"].tolist()
    assert "".join(f" {n:>4}" for n in [*first, sum(first)]) in run.log


def test_columns_are_as_wide_as_their_numbers():
    lines = table_of_classes(torch.tensor([[3, 12345], [1, 2]])).splitlines()
    assert {len(line) for line in lines[1:]} == {6 + 3 * 6}


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("sort", "did you mean sorted"),
        ("dirichlet", "needs ALPHA"),
        ("dirichlet:0", "needs ALPHA"),
        ("dirichlet:nan", "needs ALPHA"),
        ("dirichlet:inf", "needs ALPHA"),
        ("quantity:-1", "needs ALPHA"),
        ("label-dirichlet:0", "needs ALPHA"),
        ("shards:1.5", "needs S"),
        ("shards:0", "needs S"),
        ("shards:900", "makes 7200 shards of 1000 samples"),
        ("sorted:3", "takes no number"),
    ],
)
def test_what_is_no_partition_is_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        parted(spec, LABELS, 8, 0)


def test_more_workers_than_samples_are_refused():
    with pytest.raises(SettingError, match="leaves no sample for some of 2000 workers"):
        parted("sorted", LABELS, 2000, 0)


@pytest.mark.slow
def test_each_workers_model_is_evaluated_into_a_table(tmp_path):
    own = {"algorithm": "dpsgd", "partition": "sorted", "runs_dir": tmp_path}
    runs = {e: simsgd.train(**RUN, **own, evaluate=e) for e in ("average", "workers", "both")}
    tables = {
        e: read_table(runs[e].folder / "workers.csv", WORKER_COLUMNS) for e in ("workers", "both")
    }
    assert not (runs["average"].folder / "workers.csv").exists()
    assert len(tables["both"]) == 2 * 8
    assert tables["both"].equals(tables["workers"])
    means = tables["both"].groupby("epoch")["val_error1"].mean()
    assert runs["workers"].epochs["val_error1"].tolist() == pytest.approx(means.tolist())
    average = runs["average"].epochs["val_error1"].tolist()
    assert runs["both"].epochs["val_error1"].tolist() == average
    assert (runs["both"].epochs["consensus_distance"] > 0).all()
    assert average[-1] < means.iloc[-1]


def test_each_workers_model_is_evaluated_within_an_epoch_too(tmp_path):
    own = {"algorithm": "dpsgd", "runs_dir": tmp_path, "name": "a", "evaluate": "workers"}
    simsgd.train(**{**RUN, **own, "epochs": None}, steps=3, eval_every=2)
    run = simsgd.train(resume=tmp_path / "a", steps=5, quiet=True)
    steps = run.workers.groupby("step")
    assert steps["worker"].apply(list).tolist() == 4 * [[*range(8)]]
    assert [*steps.groups] == run.evaluations["step"].tolist() == [2, 3, 4, 5]
    means = steps["val_error1"].mean()
    assert run.evaluations["val_error1"].tolist() == pytest.approx(means.tolist())


ALGORITHMS = {
    "dpsgd": {},
    "choco": {"compressor": "topk:0.1", "consensus_stepsize": 0.1},
    "dcd": {"compressor": "qsgd:63"},
    "ecd": {"compressor": "qsgd:127"},
    "deepsqueeze": {"compressor": "topk:0.5", "consensus_stepsize": 0.2},
    "local": {"compressor": "topk:0.1", "local_steps": 4},
    "fedavg": {"local_steps": 4},
    "diloco": {"local_steps": 4},
    "async": {"prune": 0.9},
    "butterfly": {"prune": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_that_was_stopped_goes_on_to_the_same_last_bit(algorithm, tmp_path):
    settings = {**RUN, **ALGORITHMS[algorithm], "algorithm": algorithm, "partition": "sorted"}
    apart = algorithm != "async"
    settings["evaluate"] = "both" if apart else "average"
    whole = simsgd.train(**settings, runs_dir=tmp_path, name="whole")
    part = simsgd.train(**{**settings, "epochs": 1}, runs_dir=tmp_path, name="part")
    simsgd.train(resume=part.folder, epochs=2, quiet=True)
    ended, wanted = (load_checkpoint(r.folder)["simulator"]["parameters"] for r in (part, whole))
    for name, p in wanted.items():
        assert torch.equal(p, ended[name])
    for name in ("epochs.csv", "workers.csv") if apart else ("epochs.csv",):
        columns = [c for c in whole.epochs.columns if c != "seconds"]
        if name == "epochs.csv":
            assert whole.epochs[columns].equals(part.epochs[columns])
        else:
            texts = [(r.folder / name).read_text() for r in (whole, part)]
            assert texts[0] == texts[1]


@pytest.mark.slow
def test_batchnorm_statistics_of_the_average_are_estimated_anew(tmp_path):
    (tmp_path / "normed.py").write_text(
        "from torch import nn\n"
        "regime = {0: {'lr': 0.1}}\n"
        "def normed(num_classes):\n"
        "    layers = nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU()\n"
        "    return nn.Sequential(*layers, nn.Linear(16, num_classes))\n"
    )
    settings = {k: v for k, v in RUN.items() if k != "model_config"}
    settings |= {"model": str(tmp_path / "normed.py"), "algorithm": "dpsgd", "partition": "sorted"}
    run = simsgd.train(**settings, runs_dir=tmp_path, recalibrate_bn=5)
    saved = torch.load(run.folder / "last.pt", weights_only=True)["model"]
    experiment = Experiment.of(Config(**settings))
    experiment.model.load_state_dict(saved)
    batches = itertools.islice(experiment.epoch_batches(0), 5)
    seen = torch.stack([experiment.model[1](x.flatten(1)) for x, _ in batches])  # [5, B, 16]
    assert torch.allclose(saved["2.running_mean"], seen.mean((0, 1)), atol=1e-10)
    assert torch.allclose(saved["2.running_var"], seen.var(1).mean(0), atol=1e-10)
    assert math.isfinite(run.epochs["val_loss"].iloc[-1])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"evaluate": "both"}, "evaluate has no effect with algorithm allreduce"),
        ({"recalibrate_bn": 3}, "recalibrate_bn has no effect on a model without BatchNorm"),
        ({"partition": "sort"}, "partition is not known"),
    ],
)
def test_an_evaluation_without_effect_is_refused(settings, error, tmp_path):
    with pytest.raises(SettingError, match=error):
        simsgd.train(**RUN, **settings, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


class TestPartition:
    LABELS = torch.arange(10).repeat_interleave(100)

    @pytest.mark.parametrize("alpha", [0.1, 1, 10000])
    @pytest.mark.parametrize("workers", [3, 8])
    def test_nobody_has_a_sample_twice(self, alpha, workers):
        parts = torch.cat(parted(f"dirichlet:{alpha}", self.LABELS, workers, 0))
        assert len(parts.unique()) == len(parts) == 1000

    @pytest.mark.slow
    def test_a_large_alpha_is_iid_for_every_worker(self):
        labels = torch.arange(10).repeat_interleave(1000)
        spread = torch.zeros(16, dtype=torch.float64)
        for seed in range(10):
            parts = parted("dirichlet:10000", labels, 16, seed)
            counts = torch.stack([labels[part].bincount(minlength=10) for part in parts])
            spread += counts.double().std(1) / 10
        assert spread.max() < 2 * spread.median()

    @pytest.mark.parametrize("spec", ["dirichlet:1", "iid-fixed", "sorted", "shards:2"])
    def test_every_sample_belongs_to_somebody(self, spec):
        labels = torch.arange(1003) % 10
        parts = parted(spec, labels, 8, 0)
        assert len(torch.cat(parts).unique()) == 1003
        assert max(map(len, parts)) - min(map(len, parts)) <= (2 if spec == "shards:2" else 1)
