"""A loop of one's own leaves the run that `train` would, and goes on to the last bit."""

import math
import random
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn
from torch.utils.data import DataLoader

import simsgd
from simsgd.cli import main
from simsgd.methods import Compressor, Dense
from simsgd.settings import SettingError
from simsgd.training.checkpoint import load_checkpoint

METHODS = {
    "topk": {"compressor": "topk:0.1", "memory": "residual", "lr": 0.1},
    "choco": {"algorithm": "choco", "compressor": "topk:0.1", "lr": 0.1},
    "fedavg": {"algorithm": "fedavg", "local_steps": 2, "participation": 0.5, "lr": 0.1},
}
TIMES = ["compute_seconds", "compression_seconds", "seconds"]


class Stopped(Exception):
    pass


@dataclass(frozen=True)
class Rounded(Compressor):
    function: object
    biased = True

    def compress(self, x, state, step):
        return Dense.of(self.function(x))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 6, generator=generator)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


def simulator(**settings):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    return simsgd.Simulator(nn.Sequential(*layers), workers=4, **{"lr": 0.1, **settings})


def measured(model, x, y):
    output = model(x)
    return {
        "val_loss": F.cross_entropy(output, y).item(),
        "val_error1": 100 * (output.argmax(1) != y).float().mean().item(),
    }


def noise():
    """Return a number from each global generator."""
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


def by_epochs(folder, stop=None, when=None, method="topk", **settings):
    """Train three epochs of three steps on noisy batches that are shuffled, and evaluate twice."""
    x, y = data()
    own = torch.Generator().manual_seed(7)
    loader = torch.utils.data.DataLoader(list(zip(x, y, strict=True)), 32, shuffle=True)
    sim = simulator(**METHODS[method])
    settings = {"resume": True, "quiet": True, "state": {"own": own}, **settings}
    with simsgd.recording(folder, sim, **settings) as run:
        for epoch in run.epochs(3):
            for inputs, labels in run.batches(loader):
                noisy = inputs + 0.01 * noise() + torch.randn(6, generator=own)
                sim.step(noisy, labels, epoch)
                if when is not None and sim.steps == stop:
                    when()
                if sim.steps in (2, 4):
                    run.evaluate(**measured(sim.evaluation_model(), x, y))
            run.evaluate(**measured(sim.evaluation_model(), x, y))
            if when is not None and sim.steps == -(stop or 0):
                when()
    return simsgd.Run(folder)


def by_steps(folder, stop=None, when=None, **settings):
    """Train nine steps, without epochs."""
    x, y = data()
    sim = simulator(**METHODS["topk"])
    settings = {"resume": True, "quiet": True, "checkpoint_every": 1, **settings}
    with simsgd.recording(folder, sim, **settings) as run:
        while sim.steps < 9:
            index = torch.randint(96, (32,))
            sim.step(x[index] + noise(), y[index])
            if when is not None and sim.steps == stop:
                when()
            if sim.steps % 4 == 0:
                run.evaluate(**measured(sim.evaluation_model(), x, y))
    return simsgd.Run(folder)


def seed_all():
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def stop():
    raise Stopped


def terminate():
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _seeded():
    seed_all()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, runs = tmp_path_factory.mktemp("whole"), {}
    for method in METHODS:
        seed_all()
        runs[method] = by_epochs(folder / method, method=method)
    seed_all()
    return runs | {"steps": by_steps(folder / "steps")}


def rows(table):
    return table.drop(columns=[name for name in TIMES if name in table])


def same(kill_runs, run, other):
    assert kill_runs.differences(run.folder, other.folder) == []
    assert rows(run.evaluations).equals(rows(other.evaluations))


# the folder


@pytest.mark.slow
def test_the_steps_are_those_of_the_simulator(whole):
    x, y = data()
    sim, losses, sent = simulator(**METHODS["topk"]), [], []
    for _ in range(9):
        index = torch.randint(96, (32,))
        record = sim.step(x[index] + noise(), y[index])
        losses.append(record.loss)
        sent.append(sum(record.payload_bytes) // 4)
    assert whole["steps"].steps["loss"].tolist() == losses
    assert whole["steps"].steps["payload_bytes"].tolist() == sent
    assert whole["steps"].steps["samples"].tolist() == [32] * 9


def test_a_recorded_loop_is_the_loop_without_a_recording(tmp_path):
    x, y = data()
    plain, recorded = simulator(), simulator()
    with simsgd.recording(tmp_path / "a", recorded, quiet=True) as run:
        for one in (plain, recorded):
            losses = [one.step(x[:32], y[:32]).loss for _ in range(3)]
    assert run.folder == tmp_path / "a"
    assert simsgd.Run(tmp_path / "a").steps["loss"].tolist() == losses
    for name, value in plain.parameters().items():
        assert torch.equal(value, recorded.parameters()[name])


@pytest.mark.slow
def test_evaluations_and_epochs_have_what_was_measured(whole):
    run = whole["topk"]
    assert run.evaluations["step"].tolist() == [2, 3, 4, 6, 9]
    assert run.evaluations["epochs"].tolist() == [2 / 3, 1, 1 + 1 / 3, 2, 3]
    assert run.epochs["step"].tolist() == [3, 6, 9]
    assert run.evaluations["val_error1"].notna().all()
    assert run.best.val_error1 == run.evaluations["val_error1"].min()
    best = load_checkpoint(run.folder / "best.pt", "checkpoint")
    assert best["step"] == run.best.step
    by_hand = run.steps["loss"][:3].mean()
    assert run.epochs["train_loss"][0] == pytest.approx(by_hand, rel=1e-12)
    assert whole["steps"].evaluations["step"].tolist() == [4, 8]
    assert whole["steps"].epochs.empty


@pytest.mark.slow
def test_the_model_in_the_checkpoint_is_the_one_that_was_evaluated(whole):
    x, y = data()
    model = simulator().model
    for run in whole.values():
        best = load_checkpoint(run.folder / "best.pt", "checkpoint")
        model.load_state_dict(best["model"])
        assert measured(model.eval(), x, y)["val_loss"] == run.best.val_loss


def test_training_errors_are_of_classes_alone(whole, tmp_path):
    assert 0 < whole["topk"].epochs["train_error1"][0] < 100
    net = nn.Linear(6, 1)
    sim = simsgd.Simulator(net, nn.MSELoss(), workers=4, lr=0.1)
    with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
        for _ in run.epochs(1):
            sim.step(torch.ones(8, 6), torch.ones(8, 1))
            run.evaluate(val_loss=0.5)
    run = simsgd.Run(tmp_path / "a")
    assert math.isnan(run.epochs["train_error1"][0])
    assert (run.config["metric"], run.best.val_loss) == ("none", 0.5)
    assert " ".join(run.summary().split())[:37] == "validation loss 0.5000 after 1 epoch "


def test_a_metric_of_ones_own_decides_the_best(tmp_path):
    sim = simulator()
    x, y = data()
    named = {"metric": "iou", "metric_mode": "max", "quiet": True}
    with simsgd.recording(tmp_path / "a", sim, **named) as run:
        for value in (0.5, 0.9, 0.7):
            sim.step(x[:8], y[:8])
            run.evaluate(val_loss=1.0, val_iou=value)
        with pytest.raises(SettingError, match=r"^evaluate takes val_loss, .*val_iou, not val_f1"):
            run.evaluate(val_f1=1.0)
    run = simsgd.Run(tmp_path / "a")
    assert (run.best.step, run.best.val_iou) == (2, 0.9)
    assert simsgd.results(tmp_path)["iou"].tolist() == [0.7]


@pytest.mark.slow
def test_every_reader_takes_recorded_loops(whole, tmp_path):
    folders = [str(run.folder) for run in whole.values()]
    for words in (
        ["results", *folders],
        ["report", *folders, "-o", str(tmp_path / "page.html")],
        ["network", *folders],
        ["plot-results", *folders, "-o", str(tmp_path / "a.png"), "-x", "samples"],
        ["plot-results", *folders, "-o", str(tmp_path / "a.png"), "--kind", "pareto"],
        ["plot-results", *folders[:3], "-o", str(tmp_path / "a.png")],
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(main, ["results", *folders]).output
    assert "3/3" in shown
    assert "8 steps" in shown


# going on


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [1, 4, 5, 9])
def test_a_loop_of_epochs_goes_on_after_an_error_to_the_last_bit(
    kill_runs, whole, tmp_path, method, at
):
    with pytest.raises(Stopped):
        by_epochs(tmp_path / "a", at, stop, method)
    assert simsgd.Run(tmp_path / "a").steps["step"].tolist() == [*range(1, at + 1)]
    random.seed(99)  # another process begins elsewhere
    if at == 4:
        # the error came before the evaluation after step 4: the loop goes on with step 5
        run = by_epochs(tmp_path / "a", method=method)
        assert rows(run.steps).equals(rows(whole[method].steps))
        return
    same(kill_runs, by_epochs(tmp_path / "a", method=method), whole[method])


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 5, -3, -6])
def test_a_loop_stopped_by_sigterm_goes_on_to_the_last_bit(kill_runs, whole, tmp_path, at):
    with pytest.raises(simsgd.Interrupted, match=r"^stopped after step \d; to continue, start"):
        by_epochs(tmp_path / "a", at, terminate)
    torch.manual_seed(5)
    same(kill_runs, by_epochs(tmp_path / "a"), whole["topk"])


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 7])
def test_a_loop_of_steps_goes_on_to_the_last_bit(kill_runs, whole, tmp_path, at):
    with pytest.raises(Stopped):
        by_steps(tmp_path / "a", at, stop)
    torch.manual_seed(5)
    same(kill_runs, by_steps(tmp_path / "a"), whole["steps"])


@pytest.mark.slow
def test_a_loop_that_has_ended_has_nothing_to_do_or_goes_on(kill_runs, whole, tmp_path):
    run = by_epochs(tmp_path / "a")
    torch.manual_seed(5)
    same(kill_runs, by_epochs(run.folder), whole["topk"])


def test_what_an_error_left_half_done_is_not_kept(tmp_path, monkeypatch):
    sim = simulator()
    x, y = data()

    def loop():
        with simsgd.recording(tmp_path / "a", sim, quiet=True, checkpoint_every=1):
            sim.step(x[:32], y[:32])
            monkeypatch.setattr("simsgd.simulator.simulator.step_parameters", lambda *_: stop())
            sim.step(x[:32], y[:32])

    with pytest.raises(Stopped):
        loop()
    assert load_checkpoint(tmp_path / "a")["simulator"]["steps"] == 1


def test_a_loop_whose_loss_is_not_finite_keeps_its_last_good_checkpoint(tmp_path):
    sim = simulator()
    x, y = data()

    def loop():
        with simsgd.recording(tmp_path / "a", sim, quiet=True, checkpoint_every=1):
            sim.step(x[:32], y[:32])
            sim.step(torch.full((32, 6), math.nan), y[:32])

    with pytest.raises(simsgd.Diverged, match=r"^the loss of worker 0 became nan at step 2"):
        loop()
    assert load_checkpoint(tmp_path / "a")["simulator"]["steps"] == 1


@pytest.mark.slow
def test_a_folder_that_was_moved_goes_on(kill_runs, whole, tmp_path):
    with pytest.raises(Stopped):
        by_epochs(tmp_path / "a", 5, stop)
    (tmp_path / "a").rename(tmp_path / "b")
    same(kill_runs, by_epochs(tmp_path / "b"), whole["topk"])


# refusals


def refused(match, folder, sim=None, **settings):
    with (
        pytest.raises(SettingError, match=match),
        simsgd.recording(folder, sim or simulator(), quiet=True, **settings),
    ):
        raise AssertionError


def test_a_folder_that_exists_is_refused_as_train_does(whole, tmp_path):
    folder = whole["topk"].folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    refused(r"^folder exists already, .*; overwrite=True replaces it, resume=True", folder)
    refused(r"^overwrite and resume were both given", folder, resume=True, overwrite=True)
    refused(r"^compressor cannot change on resume, the run has topk:0.1", folder, resume=True)
    other = simulator(**METHODS["topk"] | {"lr": 0.2})
    refused(r"^lr cannot change on resume, the run has 0.1, got 0.2", folder, other, resume=True)
    used = simulator(**METHODS["topk"])
    used.step(*(part[:32] for part in data()))
    refused(r"^simulator has done 1 steps already", folder, used, resume=True)
    refused(r"^state has a, which has no state_dict", tmp_path / "b", state={"a": 3})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "b").exists()


def test_what_a_loop_keeps_is_given_again_when_it_is_resumed(tmp_path):
    own, folder = torch.Generator(), tmp_path / "a"
    net = nn.Linear(1, 1)
    with simsgd.recording(folder, simulator(), quiet=True, state={"g": own, "net": net}) as run:
        run.save()
    before = (folder / "last.pt").read_bytes()
    lacks = r"^state lacks g, which the run was saved with; give state={\"g\": ..., \"net\": ...}$"
    refused(lacks, folder, resume=True, state={"net": net})
    has = r"^state has h, which the run was saved without; leave it out, or begin a new run$"
    refused(has, folder, resume=True, state={"g": own, "net": net, "h": torch.Generator()})
    other = r"^state has another net than the run was saved with, which was no torch generator"
    refused(other, folder, resume=True, state={"g": own, "net": own})
    assert (folder / "last.pt").read_bytes() == before
    state = torch.load(folder / "last.pt", weights_only=True)
    del state["loop"]["kept"], state["loop"]["random"]["own"]
    torch.save(state, folder / "last.pt")
    for kept in ({}, {"g": own, "net": net}):
        with simsgd.recording(folder, simulator(), quiet=True, resume=True, state=kept):
            pass


def test_another_criterion_is_refused_where_a_loop_goes_on(tmp_path):
    first, second = (
        simsgd.Simulator(nn.Linear(6, 3), criterion, workers=4, lr=0.1)
        for criterion in (F.cross_entropy, F.mse_loss)
    )
    with simsgd.recording(tmp_path / "a", first, quiet=True) as run:
        run.save()
    rule = "^criterion cannot change on resume, the run has cross_entropy, got mse_loss"
    refused(rule, tmp_path / "a", second, resume=True)


def test_a_loop_that_is_done_says_no_fewer_epochs_than_it_has(tmp_path):
    for resume, epochs in (False, 2), (True, 1):
        sim = simulator()
        with simsgd.recording(tmp_path / "a", sim, quiet=True, resume=resume) as run:
            for epoch in run.epochs(epochs):
                sim.step(*data(), epoch)
    assert simsgd.Run(tmp_path / "a").config["epochs"] == 2


@pytest.mark.parametrize("kept", [False, True])
def test_a_loader_whose_generator_is_not_kept_is_noted(tmp_path, kept):
    generator, sim = torch.Generator(), simulator()
    loader = DataLoader([*zip(*data(), strict=True)], 32, shuffle=True, generator=generator)
    state = {"loader": generator} if kept else None
    with simsgd.recording(tmp_path / "a", sim, quiet=True, state=state or {}) as run:
        for _ in run.epochs(2):
            for x, y in run.batches(loader):
                sim.step(x, y, 0)
    assert simsgd.Run(tmp_path / "a").log.count("the loader's generator is not kept") == 1 - kept


def test_a_stop_between_two_steps_of_a_batch_is_noted(tmp_path):
    sim = simulator()

    def loop():
        with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
            for number in run.batches(range(3)):
                sim.step(*data(), 0)
                if number == 1:
                    raise Stopped
                sim.step(*data(), 0)

    with pytest.raises(Stopped):
        loop()
    note = "note: 1 of 2 steps of a batch were done; a resumed run goes on with the next batch\n"
    assert simsgd.Run(tmp_path / "a").log.endswith(note)


def test_a_stop_with_batches_that_were_taken_ahead_is_noted(tmp_path):
    sim = simulator()

    def ahead(loader):
        before = next(loader)
        for batch in loader:
            yield before
            before = batch
        yield before

    def loop():
        with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
            for number in ahead(run.batches(range(4))):
                sim.step(*data(), 0)
                if number == 1:
                    raise Stopped

    with pytest.raises(Stopped):
        loop()
    note = "note: 1 batch came without a step before the next; a resumed run passes over batches "
    assert simsgd.Run(tmp_path / "a").log.endswith(f"{note}that were kept for later\n")


@pytest.mark.parametrize("held", [print, object(), {"a": [lambda: 0]}])
def test_a_state_that_no_checkpoint_can_be_read_with_is_refused(tmp_path, held):
    kept = SimpleNamespace(state_dict=lambda: {"held": held}, load_state_dict=print)
    told = r"state has o, whose state_dict\(\) holds more than tensors and plain values"
    with pytest.raises(SettingError, match=told):
        simsgd.recording(tmp_path / "a", simulator(), state={"o": kept}).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_run_of_train_and_a_loop_are_not_taken_for_each_other(kill_runs, whole, tmp_path):
    run = simsgd.train(**kill_runs.TINY | {"epochs": 1}, runs_dir=tmp_path, name="a")
    refused(r"^folder holds a run of `simsgd train`, .*--resume", run.folder, resume=True)
    folder = whole["topk"].folder
    with pytest.raises(SettingError, match=r"^resume holds a loop of one's own, .*recording"):
        simsgd.train(resume=folder)
    with pytest.raises(SettingError, match=r"^checkpoint holds a loop of one's own"):
        simsgd.evaluate(folder)


def test_a_loop_without_a_step_leaves_nothing(tmp_path):
    with simsgd.recording(tmp_path / "a", simulator(), quiet=True):
        pass
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("again", ["resume", "overwrite"])
def test_two_recordings_of_one_folder_are_refused(tmp_path, again):
    with simsgd.recording(tmp_path / "a", simulator(), quiet=True):
        words = r"^folder is being written by this process already, .*; end that one first"
        refused(words, tmp_path / "a", **{again: True})


def test_what_is_wrong_with_the_folder_is_told_by_its_name(tmp_path):
    (tmp_path / "file").touch()
    for own in ({}, {"resume": True}, {"overwrite": True}):
        refused(r"^folder is no folder, got .*/file; name another", tmp_path / "file", **own)
    refused(r"^folder cannot be made \(.*/file is no folder\), got .*/x", tmp_path / "file" / "x")
    refused(r"^folder must be one folder's name", tmp_path / "new" / "..")


def test_a_recording_that_has_ended_takes_nothing_more(tmp_path):
    sim = simulator()
    with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
        batches = run.batches([1, 2])
        next(batches)
        sim.step(*(part[:32] for part in data()))
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    for call in (
        lambda: run.evaluate(val_loss=0.5),
        run.save,
        lambda: run.log("late"),
        lambda: next(run.epochs(1)),
        lambda: next(run.batches([1])),
        lambda: next(batches),
    ):
        with pytest.raises(SettingError, match=r"^recording has ended; call it within its `with`"):
            call()
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before
    assert "none has ended yet" in run.summary()


def test_a_simulator_has_one_recording_and_one_loop_at_a_time(tmp_path):
    sim = simulator()
    with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
        refused(r"^simulator is in another recording already", tmp_path / "b", sim)
        for _ in run.epochs(1):
            with pytest.raises(SettingError, match=r"^epochs is called within a loop over epochs"):
                next(run.epochs(1))
            for _ in run.batches([1]):
                with pytest.raises(SettingError, match=r"^batches is called within a loop over"):
                    next(run.batches([1]))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("steps", "last", "noted"), [(3, False, True), (3, True, False), (4, False, False)]
)
def test_a_final_exchange_that_no_step_was_told_of_is_noted(tmp_path, steps, last, noted):
    sim = simulator(algorithm="local", local_steps=2, final_exchange=True)
    x, y = data()
    with simsgd.recording(tmp_path / "a", sim, quiet=True):
        for step in range(1, steps + 1):
            sent = sim.step(x[:32], y[:32], last=last and step == steps).payload_bytes[0]
    assert (sent == 0) == noted
    text = (tmp_path / "a" / "log.txt").read_text()
    assert (
        "note: final_exchange did nothing, for no step was said to be the last" in text
    ) == noted


def test_notes_on_settings_are_in_the_log_once(tmp_path):
    for resume in (False, True):
        sim = simulator(memory="residual")
        with simsgd.recording(tmp_path / "a", sim, quiet=True, resume=resume):
            sim.step(*(part[:32] for part in data()))
    text = (tmp_path / "a" / "log.txt").read_text()
    assert text.count("note: memory residual keeps nothing, since nothing is compressed") == 1


def test_a_loop_goes_on_with_an_object_that_lies_elsewhere_in_memory(tmp_path):
    for resume in (False, True):
        sim = simulator(compressor=Rounded(lambda x: x.round()))
        with simsgd.recording(tmp_path / "a", sim, quiet=True, resume=resume) as run:
            sim.step(*(part[:32] for part in data()))
    assert sim.steps == 2
    assert len(simsgd.Run(run.folder).steps) == 2


@pytest.mark.slow
def test_a_notebook_shows_a_recording(tmp_path):
    sim = simulator()
    with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
        assert "none has ended yet" in run._repr_html_()
        sim.step(*(part[:32] for part in data()))
        run.evaluate(val_loss=0.25)
        assert "0.25" in run._repr_html_()
        assert "sent per worker" in run.summary()


def test_a_loop_that_was_never_evaluated_is_summed_up_by_its_training_loss(tmp_path):
    x, y = data()
    sim = simulator()
    with simsgd.recording(tmp_path / "a", sim, quiet=True) as run:
        for epoch in run.epochs(2):
            sim.step(x[:32], y[:32], epoch)
    run = simsgd.Run(tmp_path / "a")
    loss = run.steps["loss"].iloc[-1]
    assert run.summary().startswith(f"training loss              {loss:.4f} after 2 epochs")
    assert "nan" not in run.summary()


def test_a_recorded_loop_keeps_the_models_asked_for(tmp_path):
    x, y = data()
    sim = simulator()
    with simsgd.recording(tmp_path / "a", sim, quiet=True, keep="all") as run:
        for loss in (2.0, 1.0, 3.0):
            sim.step(x[:32], y[:32])
            run.evaluate(val_loss=loss)
    kept = [*(tmp_path / "a/models").glob("*.pt"), tmp_path / "a/best.pt"]
    steps = {path.stem: load_checkpoint(path, "checkpoint")["step"] for path in kept}
    assert steps == {"step-1": 1, "step-2": 2, "step-3": 3, "best": 2}
