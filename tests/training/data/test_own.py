import random
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import simsgd
from simsgd.settings import SettingError
from simsgd.training.data import load
from simsgd.training.data.own import Read, own_dataset

MINE = """
import torch
def small():
    x = torch.arange(24.).view(12, 2)
    return (x, torch.arange(12) % 3), (x[:6], torch.arange(6) % 3)
def raises():
    return 1 / 0
nothing = 3
def dataset(data_dir):
    assert str(data_dir) == "there"
    return small()
"""
RUN = {"model": "logistic", "workers": 2, "batch_size": 3, "epochs": 2, "lr": 0.1, "quiet": True}


class Noisy(Dataset):
    """Draws, as augmentations do."""

    def __init__(self, n=12):
        self.targets = torch.arange(n) % 3

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return torch.randn(2) + i, int(self.targets[i])


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def parts():
    x = torch.arange(24.0).view(12, 2)
    return (x, torch.arange(12) % 3), TensorDataset(x[:6], torch.arange(6) % 3)


def test_samples_that_were_computed_from_something_are_taken_without_it():
    (x, y), val = parts()
    found = own_dataset("mine", ((x.requires_grad_() * 2, y), val))
    (batch, _), *_ = found.train.batches([torch.tensor([3, 1])])
    assert not batch.requires_grad


def test_a_file_makes_it(mine):
    found = load(f"{mine}:small")
    assert (len(found.train), len(found.val), found.num_classes) == (12, 6, 3)
    assert found.input_shape == (2,)
    (x, labels), *_ = found.train.batches([torch.tensor([3, 1])])
    assert x.tolist() == [[6, 7], [2, 3]]
    assert labels.tolist() == [0, 1]


def test_it_is_told_where_data_are(mine, tmp_path):
    assert len(load(str(mine), data_dir="there").train) == 12


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "defines no function nope"),
        ("nothing", "defines no function nothing"),
        ("raises", "cannot be made: ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_file_lacks_is_one_line(mine, name, message):
    with pytest.raises(SettingError, match=message):
        load(f"{mine}:{name}")


def test_a_file_that_is_missing_is_one_line(tmp_path):
    with pytest.raises(SettingError, match="dataset names a file that does not exist"):
        load(str(tmp_path / "none.py"))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (3, "is not a training and a validation part"),
        ((Noisy(),), "is not a training and a validation part"),
        ((torch.zeros(3, 2), torch.zeros(3, 2)), "has a part of type"),
        (((torch.zeros(3, 2), torch.zeros(2).long()), Noisy()), "as many targets as samples"),
        (((torch.zeros(3, 2), torch.zeros(3)), Noisy()), "class numbers as targets in one of its"),
        (
            ((torch.zeros(3, 2), -torch.ones(3).long()), Noisy()),
            "has a label -1, got mine; class",
        ),
        (([{"a": 1}], Noisy()), "none is a target, got mine; name it label"),
        (
            ([{"text": "so", "label": 1}], Noisy()),
            "has a column text of text, got mine; turn",
        ),
        (
            ([(torch.zeros(3), torch.zeros(3), 1)], Noisy()),
            r"gives a tuple of 3 as sample 0, which is no pair \(x, y\), got mine; give",
        ),
    ],
)
def test_anything_else_is_one_line(pair, message):
    with pytest.raises(SettingError, match=message):
        own_dataset("mine", pair)


def test_what_a_data_set_draws_is_a_function_of_its_numbers():
    found = own_dataset("mine", {"train": Noisy(), "test": Noisy()})
    before = torch.get_rng_state()

    def drawn(first):
        def numbers(index):
            return (index[:, None] + first) / torch.full((1, 4), 100.0, dtype=torch.float64)

        return next(found.train.batches([torch.tensor([5, 2])], numbers))[0]

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_a_run_of_a_file_resumes_from_anywhere(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = simsgd.train(dataset="./mine.py:small", name="whole", **RUN).epochs
    short = simsgd.train(dataset="./mine.py:small", name="short", **{**RUN, "epochs": 1})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = simsgd.train(resume=tmp_path / short.folder, epochs=2)
    assert again.epochs["val_loss"].tolist() == whole["val_loss"].tolist()


class TestObjects:
    def net(self):
        torch.manual_seed(0)
        return nn.Linear(2, 3)

    def test_they_train_as_a_loop_does(self, tmp_path):
        run = simsgd.train(dataset=parts(), runs_dir=tmp_path, **{**RUN, "model": self.net()})
        other = simsgd.train(
            dataset=parts(), runs_dir=tmp_path, **{**RUN, "model": lambda num_classes: self.net()}
        )
        assert run.config["dataset"] == "object:tuple"
        assert run.config["model"] == "object:Linear"
        assert run.epochs["val_loss"].tolist() == other.epochs["val_loss"].tolist()

    def test_a_criterion_is_what_is_minimized(self, tmp_path):
        runs = [
            simsgd.train(
                dataset=parts(),
                runs_dir=tmp_path,
                criterion=criterion,
                **{**RUN, "model": self.net()},
            )
            for criterion in (None, lambda output, target: output.square().mean())
        ]
        losses = [run.epochs["val_loss"].iloc[-1] for run in runs]
        assert losses[0] != losses[1]

    @pytest.mark.slow
    def test_a_run_goes_on_where_they_are_given_again(self, tmp_path):
        given = {"dataset": parts(), "runs_dir": tmp_path}
        whole = simsgd.train(**given, **{**RUN, "model": self.net()})
        short = simsgd.train(**given, **{**RUN, "model": self.net(), "epochs": 1})
        kept = shutil.copytree(short.folder, tmp_path / "kept")
        with pytest.raises(SettingError, match="dataset was an object in Python"):
            simsgd.train(resume=kept, epochs=2)
        again = simsgd.train(resume=short.folder, dataset=parts(), model=self.net(), epochs=2)
        assert again.epochs["val_loss"].tolist() == whole.epochs["val_loss"].tolist()

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"model": 3}, "model must be a name"),
            ({"criterion": 3}, "criterion must be"),
        ],
    )
    def test_anything_else_is_refused(self, given, message, tmp_path):
        with pytest.raises(SettingError, match=message):
            simsgd.train(dataset=parts(), runs_dir=tmp_path, **{**RUN, **given})
        assert not list(tmp_path.iterdir())


def test_samples_of_other_keys_are_told_by_these():
    source = [({"a": torch.ones(3)}, 0), ({"b": torch.ones(3)}, 1)]
    told = r"has samples of other keys, a and b of sample 1; make them all alike"
    with pytest.raises(SettingError, match=told):
        next(Read(source, torch.tensor([0, 1])).batches([torch.arange(2)]))


class Other(Dataset):
    """Makes other targets than those it keeps, as a torchvision set's wrapper may."""

    def __init__(self, keeps):
        self.x = torch.arange(40.0).view(20, 2)
        setattr(self, keeps, torch.arange(20) % 2)

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return self.x[i], 1 - i % 2


@pytest.mark.parametrize("keeps", ["targets", "labels"])
def test_targets_are_those_that_a_data_set_gives(keeps):
    split = own_dataset("mine", (Other(keeps), Other(keeps))).train
    [(_, y)] = split.batches([torch.arange(4)])
    assert y.tolist() == split.labels[:4].tolist() == [1, 0, 1, 0]


class Flipped(TensorDataset):
    """Has tensors, and gives others."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2 * x, 2 - y


class Shorter(TensorDataset):
    def __len__(self):
        return 6


@pytest.mark.parametrize("kind", [Flipped, Shorter])
def test_a_tensor_data_set_of_ones_own_gives_what_it_gives(kind):
    (x, y), _ = parts()
    part = kind(x, y)
    found = own_dataset("mine", (part, part))
    (given, labels), *_ = found.val.batches([torch.arange(len(part))])
    wanted = [part[i] for i in range(len(part))]
    assert torch.equal(given, torch.stack([sample for sample, _ in wanted]))
    assert labels.tolist() == [int(label) for _, label in wanted] == found.train.labels.tolist()


class Pairs(Dataset):
    """Samples and targets made by functions of their number, and what is kept beside them."""

    def __init__(self, x, y, targets=None):
        self.x, self.y = x, y
        if targets is not None:
            self.targets = targets

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return self.x(i), self.y(i)


def test_targets_that_are_kept_in_another_form_are_those_that_are_given():
    part = Pairs(lambda i: torch.ones(2), lambda i: i % 3, torch.eye(3)[torch.arange(12) % 3])
    assert own_dataset("mine", (part, part)).val.labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (
            lambda i: [0.5, float(i)],
            lambda i: i % 3,
            "gives lists of numbers as inputs, and the model takes a tensor, got tuple; give "
            r"torch\.tensor\(x\)",
        ),
        (
            lambda i: torch.tensor([i, 1]),
            lambda i: i % 3,
            r"gives inputs of int64, and the model takes floating point, got tuple; give x\.float",
        ),
        (
            lambda i: torch.ones(2),
            lambda i: torch.tensor([i % 3]),
            r"gives targets of shape \[samples, 1\], and the loss takes \[samples\], got tuple; ",
        ),
    ],
)
def test_samples_of_a_form_that_the_model_does_not_take_are_told(tmp_path, x, y, told):
    part = Pairs(x, y)
    with pytest.raises(SettingError, match=rf"^dataset {told}"):
        simsgd.train(dataset=(part, part), runs_dir=tmp_path, **{**RUN, "model": nn.Linear(2, 3)})
    assert list(tmp_path.iterdir()) == []


SPLIT = """
import random
import numpy as np
import torch
from torch.utils.data import TensorDataset, random_split
AT_IMPORT = torch.rand(60, 4)
def split():
    y = torch.from_numpy(np.random.permutation(60)) % 3
    whole = TensorDataset(AT_IMPORT + random.random(), y)
    return random_split(whole, [40, 20])
"""


def test_what_a_file_draws_is_the_same_each_time(tmp_path):
    (tmp_path / "split.py").write_text(SPLIT)
    every = torch.arange(20)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    parts = [load(f"{tmp_path}/split.py")]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1), np.random.rand(), random.random()
    parts.append(load(f"{tmp_path}/split.py"))
    (one, y), (other, z) = (next(iter(part.val.batches([every]))) for part in parts)
    assert torch.equal(one, other)
    assert torch.equal(y, z)


def test_what_a_model_draws_follows_from_the_seed(tmp_path):
    (tmp_path / "net.py").write_text(
        "import random, numpy as np, torch\n"
        "def model(num_classes=3):\n"
        "    net = torch.nn.Linear(2, 3)\n"
        "    net.bias.data.fill_(random.random() + np.random.rand())\n"
        "    return net\n"
    )
    settings = {**RUN, "model": f"{tmp_path}/net.py", "dataset": parts(), "runs_dir": tmp_path}
    one, same, other = (simsgd.train(**settings, seed=seed) for seed in (0, 0, 1))
    assert one.epochs["val_loss"].tolist() == same.epochs["val_loss"].tolist()
    assert one.epochs["val_loss"].tolist() != other.epochs["val_loss"].tolist()


class Counting(Dataset):
    """Draws from a generator that it keeps."""

    targets = torch.arange(12) % 3

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.from_numpy(self.rng.normal(size=2)), int(self.targets[i])


def test_draws_that_no_resumed_run_has_again_are_noted(tmp_path):
    run = simsgd.train(dataset=(Counting(), Noisy()), runs_dir=tmp_path, **RUN)
    assert "note: a sample is another when it is read again, so that a resumed run" in run.log
    assert "another when it is read" not in simsgd.train(
        dataset=(Noisy(), Noisy()), runs_dir=tmp_path, **RUN
    ).log  # fmt: skip
