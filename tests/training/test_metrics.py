"""What a user brings as targets, loss and metric: measured as a plain loop does, or one line."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd import SettingError
from simsgd.cli import main
from simsgd.results.metric import metric_of as shown_metric
from simsgd.training.metrics import Metric, one_number
from tests.process_group import trained as in_ranks

W, B = 4, 2
RUN = {"workers": W, "batch_size": B, "epochs": 2, "lr": 0.1, "dtype": "float64", "quiet": True}


def pairs(targets, samples=40, seed=0, inputs=6):
    """Return a training and a validation part whose targets are made of x."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples + 16, inputs, generator=generator, dtype=torch.float64)
    y = targets(x)
    return (x[:samples], y[:samples]), (x[samples:], y[samples:])


def net(outputs=3, kind=nn.Linear):
    torch.manual_seed(0)
    return kind(6, outputs).double()


def iou(output, target):
    found, wanted = output > 0, target > 0.5
    return (found & wanted).sum() / (found | wanted).sum().clamp(min=1)


iou.higher_is_better = True


def regression(x):
    return x[:, :3].sin()


def multilabel(x):
    return (x[:, :3] > 0).double()


def classes(x):
    return (x.sum(1) > 0).long()


def trained(tmp_path, targets, model=None, **settings):
    return simsgd.train(
        dataset=pairs(targets), model=model or net(), runs_dir=tmp_path, **{**RUN, **settings}
    )


class Pixels(nn.Module):
    """Scores of 3 classes for each pixel: [B, 6] -> [B, 3, 2, 3]."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 1)

    def forward(self, x):
        return self.conv(x.unflatten(1, (1, 2, 3)))


def pixel_classes(x):
    return x.unflatten(1, (2, 3)).mul(3).abs().long() % 3


class TestTargetsThatAreNoClasses:
    @pytest.mark.parametrize(
        ("targets", "criterion"),
        [(regression, F.mse_loss), (multilabel, F.binary_cross_entropy_with_logits)],
        ids=["regression", "multilabel"],
    )
    def test_a_run_is_the_loop_over_its_batches(self, targets, criterion, tmp_path):
        run = trained(tmp_path, targets, criterion=criterion, name="a")
        model, (train, val) = net(), pairs(targets)
        for rows in simulated_order(len(train[0])):
            losses = [criterion(model(train[0][own]), train[1][own]) for own in rows]
            gradients = torch.autograd.grad(sum(losses) / W, list(model.parameters()))
            with torch.no_grad():
                for p, gradient in zip(model.parameters(), gradients, strict=True):
                    p -= 0.1 * gradient
        wanted = criterion(model(val[0]), val[1]).item()
        assert run.last.val_loss == pytest.approx(wanted, rel=1e-10)
        assert math.isnan(run.last.val_error1)
        assert f"validation loss            {wanted:.4f} after 2 epochs" in run.summary()
        assert f"val loss {wanted:.4f}, sent" in run.log

    def test_a_loss_must_be_given(self, tmp_path):
        with pytest.raises(SettingError, match="criterion must be given: the targets of tuple"):
            trained(tmp_path, regression)

    def test_shapes_that_broadcast_are_refused(self, tmp_path):
        with pytest.raises(SettingError, match="needs targets of the output's shape"):
            trained(tmp_path, lambda x: x[:, 0], net(1), criterion="mse_loss")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("partition", ["sorted", "dirichlet:1", "shards:2"])
    def test_they_are_not_divided_by_class(self, partition, tmp_path):
        with pytest.raises(SettingError, match="divides by class, and the targets are no class"):
            trained(tmp_path, regression, criterion="mse_loss", partition=partition)

    def test_they_are_divided_at_random(self, tmp_path):
        run = trained(tmp_path, regression, criterion="mse_loss", partition="iid-fixed")
        assert run.partition.empty
        assert run.last.val_loss < 1

    def test_of_pixels_the_error_is_that_of_pixels(self, tmp_path):
        run = trained(tmp_path, pixel_classes, net_of(Pixels), name="a", epochs=1)
        model = restored(run, net_of(Pixels))
        _, (x, y) = pairs(pixel_classes)
        wanted = 100 * float((model(x).argmax(1) != y).double().mean())
        assert run.last.val_pixel_error == pytest.approx(wanted, rel=1e-12)
        assert run.config["metric"] == "pixel-error"
        assert f"validation pixel error     {wanted:.2f} % after 1 epoch" in run.summary()

    @pytest.mark.parametrize("ignored", [-100, 255])
    def test_of_pixels_those_that_the_loss_ignores_do_not_count(self, tmp_path, ignored):
        def some(x):
            return pixel_classes(x).masked_fill(x.unflatten(1, (2, 3)) > 0, ignored)

        criterion = nn.CrossEntropyLoss(ignore_index=ignored)
        run = trained(tmp_path, some, net_of(Pixels), criterion=criterion, name="a", epochs=1)
        model, (_, (x, y)) = restored(run, net_of(Pixels)), pairs(some)
        counts = y != ignored
        wanted = 100 * float((model(x).argmax(1) != y)[counts].double().mean())
        assert run.last.val_pixel_error == pytest.approx(wanted, rel=1e-12)
        assert run.last.val_loss == pytest.approx(criterion(model(x), y).item(), rel=1e-10)
        assert 0 < run.last.train_pixel_error < 100


def net_of(kind):
    torch.manual_seed(0)
    return kind().double()


def restored(run, model):
    state = torch.load(run.folder / "last.pt", weights_only=True)["model"]
    model.load_state_dict(state)
    return model.eval()


def simulated_order(samples):
    """Return the samples of each worker in each step of a run, as the run orders them."""
    from simsgd.training.data import epoch_order

    for epoch in range(RUN["epochs"]):
        order = epoch_order(samples, 0, epoch)
        yield from order[: samples // (W * B) * W * B].view(-1, W, B)


class TestMetric:
    def test_a_function_of_ones_own_is_measured_and_shown(self, tmp_path):
        run = trained(tmp_path, multilabel, name="a", metric=iou, criterion=bce())
        model = restored(run, net())
        _, (x, y) = pairs(multilabel)
        wanted = float(iou(model(x), y))
        assert run.last.val_iou == pytest.approx(wanted, rel=1e-10)
        assert run.config["metric"] == "object:iou"
        assert run.config["metric_mode"] == "max"
        assert f"validation iou             {wanted:.4g} after 2 epochs" in run.summary()
        assert f"val iou {wanted:.4g}, sent" in run.log
        header = (run.folder / "epochs.csv").read_text().splitlines()[0]
        assert header.endswith("seconds,train_iou,val_iou")

    def test_in_training_it_is_the_mean_over_the_samples(self, tmp_path):
        seen = []

        def mean_output(output, target):
            seen.append((len(output), float(output.mean())))
            return output.mean()

        run = trained(
            tmp_path, multilabel, name="a", metric=mean_output, metric_mode="min", epochs=1,
            criterion=bce(), engine="loop",
        )  # fmt: skip
        steps = [value for samples, value in seen[1:] if samples == W * B]
        assert run.last.train_mean_output == pytest.approx(sum(steps) / len(steps), rel=1e-12)

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_the_best_is_the_best_by_its_direction(self, mode, tmp_path):
        values = iter([0.5, *[0.0] * 5, 0.3, *[0.0] * 5, 0.7, *[0.0] * 5, 0.4, 0.1])

        def measure(output, target):
            return next(values) if len(output) == 16 else 0.0

        run = trained(
            tmp_path, multilabel, name="a", metric=measure, metric_mode=mode, epochs=3,
            criterion=bce(),
        )  # fmt: skip
        measured = run.epochs["val_measure"].tolist()
        best = min(measured) if mode == "min" else max(measured)
        assert run.best.val_measure == best
        assert torch.load(run.folder / "best.pt")["epoch"] == measured.index(best) + 1

    @pytest.mark.slow
    def test_a_resumed_run_is_the_same_run(self, tmp_path):
        given = {"dataset": pairs(multilabel), "metric": iou, "criterion": bce()}
        whole = simsgd.train(**given, model=net(), runs_dir=tmp_path, name="a", **RUN)
        short = {**RUN, "epochs": 1}
        half = simsgd.train(**given, model=net(), runs_dir=tmp_path, name="b", **short)
        with pytest.raises(SettingError, match="dataset was an object"):
            simsgd.train(resume=half.folder, epochs=2)
        again = simsgd.train(resume=half.folder, epochs=2, model=net(), **given)
        for column in ("train_iou", "val_iou", "val_loss"):
            assert again.epochs[column].tolist() == whole.epochs[column].tolist()

    def test_each_worker_has_its_own(self, tmp_path):
        run = trained(
            tmp_path, multilabel, name="a", metric=iou, criterion=bce(), algorithm="dpsgd",
            topology="ring", evaluate="workers", epochs=1,
        )  # fmt: skip
        own = run.workers["val_iou"]
        assert len(own) == W
        assert run.last.val_iou == pytest.approx(own.mean())
        run.plot(kind="topology", output=tmp_path / "graph.png")

    @pytest.mark.slow
    def test_accuracy_is_what_the_error_leaves(self, tmp_path):
        run = trained(tmp_path, classes, net(2), metric="accuracy", name="a")
        assert (run.epochs["val_accuracy"] == 100 - run.epochs["val_error1"]).all()
        assert run.best.val_accuracy == run.epochs["val_accuracy"].max()
        assert f"validation accuracy        {run.last.val_accuracy:.2f} %" in run.summary()

    def test_none_leaves_the_loss(self, tmp_path):
        run = trained(tmp_path, classes, net(2), metric="none", name="a")
        assert run.best.val_loss == run.epochs["val_loss"].min()
        assert f"validation loss            {run.last.val_loss:.4f}" in run.summary()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"metric": "acuracy"}, "metric is not known, got acuracy; did you mean accuracy"),
            ({"metric": "accuracy", "metric_mode": "max"}, "metric_mode has no effect with metric"),
            ({"metric_mode": "max"}, "metric_mode has no effect with metric of the data"),
            ({"metric": lambda o, y: 1.0}, "metric does not say whether more is better"),
            ({"metric": lambda o: 1.0, "metric_mode": "min"}, "cannot be computed: TypeError"),
            ({"metric": lambda o, y: o, "metric_mode": "min"}, "returns a tensor of shape"),
            ({"metric": 3}, "metric must be a name or a function"),
            ({"criterion": lambda o, y: o.square()}, "^criterion returns a tensor of shape"),
            ({"criterion": "mse"}, "criterion is not known, got mse; did you mean mse_loss"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_one_line(self, settings, message, tmp_path):
        with pytest.raises(SettingError, match=message):
            trained(tmp_path, classes, net(2), **settings)
        assert not list(tmp_path.iterdir())

    def test_error_needs_classes(self, tmp_path):
        with pytest.raises(SettingError, match="metric needs class numbers as targets"):
            trained(tmp_path, regression, metric="error", criterion="mse_loss")

    @pytest.mark.parametrize("name", ["loss", "error1", "epoch", "momentum", "best"])
    def test_a_name_that_is_taken_is_refused(self, name, tmp_path):
        def metric(output, target):
            return 1.0

        metric.__name__, metric.higher_is_better = name, True
        with pytest.raises(SettingError, match=f"gives its columns the name {name}, which"):
            trained(tmp_path, classes, net(2), metric=metric)


def bce():
    return F.binary_cross_entropy_with_logits


FILE = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
def dataset():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator)
    y = {"a": x.sum(1, keepdim=True), "b": x[:, :2]}
    return ({"one": x, "two": x > 0}, y), ({"one": x[:8], "two": x[:8] > 0}, {"a": y["a"][:8], "b": y["b"][:8]})
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 1), nn.Linear(6, 2)
    def forward(self, x):
        return {"a": self.a(x["one"]), "b": self.b(x["one"] * x["two"])}
def model():
    return Net()
def loss(output, target):
    return mse_loss(output["a"], target["a"]) + mse_loss(output["b"], target["b"])
def apart(output, target):
    return (output["a"] - target["a"]).abs().mean()
apart.higher_is_better = False
"""  # noqa: E501


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)


def call(*words, code=0):
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


OWN = (
    "--dataset", "./mine.py", "--model", "./mine.py", "--criterion", "./mine.py:loss",
    "--metric", "./mine.py:apart", "--workers", 2, "--batch-size", 4, "--lr", 0.05,
)  # fmt: skip


@pytest.mark.usefixtures("mine")
class TestFromTheCommandLine:
    @pytest.mark.slow
    def test_everything_of_ones_own_goes_through_every_command(self, tmp_path, monkeypatch):
        call("train", *OWN, "--epochs", 2, "--name", "a")
        call("train", *OWN, "--epochs", 1, "--name", "b", "--seed", 1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        call("train", "--resume", tmp_path / "runs/b", "--epochs", 2)
        run = simsgd.Run(tmp_path / "runs/b")
        assert len(run.epochs) == 2
        assert run.config["metric"] == f"{tmp_path / 'mine.py'}:apart"
        assert run.used["metric_mode"] == "min"
        call("train", *OWN, "--epochs", 1, "--dry-run", code=2)  # ./mine.py is not here
        monkeypatch.chdir(tmp_path)
        call("train", *OWN, "--epochs", 1, "--dry-run")
        printed = call("evaluate", "runs/b")
        assert f"validation apart   {run.last.val_apart:.4g}" in printed
        assert "error@1" not in printed
        table = json.loads(call("results", "runs", "--json"))
        assert [row["apart"] for row in table] == [
            simsgd.Run(f"runs/{name}").last.val_apart for name in "ab"
        ]
        assert " apart " in call("results", "runs")
        call("plot-results", "runs", "-o", "apart.png")
        call("plot-results", "runs", "-o", "pareto.png", "--kind", "pareto")
        call("report", "runs", "-o", "report.html")
        page = Path("report.html").read_text()
        assert "Validation apart after each epoch" in page
        assert "Sorted by apart, the best first" in page

    @pytest.mark.slow
    def test_it_is_swept(self):
        printed = call("sweep", *OWN, "--epochs", 1, "--compressor", "none,sign", "--jobs", 1)
        sweep = simsgd.Sweep("runs/sweep-compressor")
        lines = [line for line in printed.splitlines() if line.startswith("[")]
        assert all(": apart 0." in line or ": apart 1." in line for line in lines), lines
        assert {"val_apart_mean", "best_val_apart_std", "val_error1_mean"} <= {*sweep.table}
        assert not sweep.table["val_apart_mean"].isna().any()
        assert " apart " in sweep.summary()

    @pytest.mark.slow
    @pytest.mark.distributed
    def test_it_is_verified(self):
        words = call("verify", *OWN, "--steps", 2, "--epochs", 1)
        assert "simulation and processes agree" in words


@pytest.mark.distributed
@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("algorithm", ["allreduce", "fedavg"])
def test_a_run_spread_over_processes_is_that_of_one(algorithm, two_ranks, tmp_path):
    recipe = {
        "dataset": str(tmp_path / "mine.py"), "model": str(tmp_path / "mine.py"),
        "criterion": f"{tmp_path}/mine.py:loss", "metric": f"{tmp_path}/mine.py:apart",
        "runs_dir": tmp_path, "device": "cpu", "algorithm": algorithm, **RUN,
    }  # fmt: skip
    alone = simsgd.train(**{**recipe, "name": "alone"})
    shared = simsgd.Run(two_ranks(in_ranks, {**recipe, "name": "shared"}))
    for column in ("train_apart", "val_apart", "train_loss", "val_loss"):
        assert shared.epochs[column].tolist() == pytest.approx(
            alone.epochs[column].tolist(), rel=1e-9
        )


class OwnLoss(nn.Module):
    """Returns its loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, batch):
        return {"loss": F.mse_loss(self.linear(batch["x"]), batch["wanted"])}


@pytest.mark.slow
def test_a_model_may_return_its_loss(tmp_path):
    (train, val) = pairs(regression)
    parts = [(({"x": x, "wanted": y}), torch.zeros(len(x))) for x, y in (train, val)]
    run = simsgd.train(
        dataset=parts, model=net_of(OwnLoss), criterion=lambda output, _: output["loss"],
        runs_dir=tmp_path, name="a", **RUN,
    )  # fmt: skip
    plain = trained(tmp_path, regression, criterion="mse_loss", name="b")
    assert run.last.val_loss == pytest.approx(plain.last.val_loss, rel=1e-10)
    assert run.last.train_loss == pytest.approx(plain.last.train_loss, rel=1e-10)


@pytest.mark.slow
@pytest.mark.distributed
def test_files_that_import_the_files_beside_them_go_through_other_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    Path("parts/layer_beside.py").write_text("from torch import nn\nlayer = nn.Linear\n")
    Path("parts/net.py").write_text(
        "import layer_beside\ndef model(num_classes, input_shape):\n"
        "    return layer_beside.layer(input_shape[0], num_classes)\n"
        "def dataset():\n    import torch\n    x = torch.eye(8).repeat(4, 1)\n"
        "    y = torch.arange(8).repeat(4) % 3\n    return (x, y), (x, y)\n"
    )
    own = "--model", "parts/net.py", "--dataset", "parts/net.py", "--workers", 2, "--lr", 0.1
    own = *own, "--epochs", 1
    assert "simulation and processes agree" in call("verify", *own, "--steps", 2, "--batch-size", 4)
    printed = call("sweep", *own, "--batch-size", "2,4", "--runs-dir", "s")
    assert "[2/2]" in printed
    assert "failed" not in printed


@pytest.mark.slow
def test_tables_of_several_metrics_have_a_column_for_each(tmp_path):
    trained(tmp_path, classes, net(2), name="a")
    trained(tmp_path, classes, net(2), name="b", metric="accuracy")
    table = simsgd.results(tmp_path)
    assert list(table.columns[-10:]) == [
        "epochs", "error", "accuracy", "best", "bytes", "received", "link", "network", "ratio",
        "seconds",
    ]  # fmt: skip
    assert table["accuracy"].isna().tolist() == [True, False]
    assert table["error"].isna().tolist() == [False, True]
    with pytest.raises(SettingError, match="y must be given for runs with several metrics"):
        simsgd.plot_results(tmp_path)
    page = simsgd.report(tmp_path, tmp_path / "report.html").read_text()
    assert "Validation accuracy after each epoch" in page
    assert "Validation error@1 after each epoch" in page


@pytest.mark.parametrize(("classes", "few"), [(2, True), (5, True), (6, False)])
def test_five_guesses_measure_nothing_where_there_are_no_more_classes(classes, few):
    output = torch.arange(4 * classes, dtype=torch.float32).view(4, classes)
    missed = Metric(shown_metric({})).sums(output, torch.zeros(4, dtype=torch.int64))
    assert missed[0] == 4
    assert math.isnan(missed[1]) if few else missed[1] == 4


@pytest.mark.slow
@pytest.mark.parametrize(("value", "told"), [(math.nan, True), (0.5, False)])
def test_a_metric_that_is_never_a_number_is_told_at_the_end(tmp_path, value, told):
    def mine(output, target):
        return value

    run = trained(tmp_path, regression, criterion="mse_loss", metric=mine, metric_mode="min")
    note = "note: mine was a number in no evaluation, so that none is the best: there is no best.pt"
    assert (note in run.log) == told != (run.folder / "best.pt").exists()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (500.0, "is in percent, from 0 to 100, got 500.0"),
        (-1, "is in percent, from 0 to 100, got -1.0"),
        (1j, "must be one number, got complex"),
        ("1.0", "must be one number, got str"),
        (True, "must be one number, got bool"),
    ],
)
def test_a_measured_error_that_is_no_percentage_is_refused(value, told):
    with pytest.raises(SettingError) as refused:
        one_number("val_error1", value)
    assert str(refused.value) == f"val_error1 {told}"
    assert math.isnan(one_number("val_error5", math.nan))
