"""One worker that sends all: to the last bit what torch does alone."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler

from simsgd import Simulator
from tests.toy import batch_norm_mlp, batches

STEPS, EPOCH = 8, 2  # steps, and those of an epoch
OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "adam": ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adamw": ("AdamW", {"lr": 0.01, "betas": (0.8, 0.99)}),
    "adagrad": ("Adagrad", {"lr": 0.05, "lr_decay": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "adafactor": ("Adafactor", {"lr": 0.01}),
    "nadam": ("NAdam", {"lr": 0.01}),
    "radam": ("RAdam", {"lr": 0.01}),
    "adadelta": ("Adadelta", {"lr": 1.0}),
    "adamax": ("Adamax", {"lr": 0.01}),
    "asgd": ("ASGD", {"lr": 0.05, "t0": 2}),
    "rprop": ("Rprop", {"lr": 0.01}),
}
SCHEDULERS = {
    "none": None,
    "cosine": lambda own: lr_scheduler.CosineAnnealingLR(own, 3, eta_min=0.001),
    "milestones": lambda own: lr_scheduler.MultiStepLR(own, [1, 3], 0.3),
    "warmup": lambda own: lr_scheduler.SequentialLR(
        own,
        [lr_scheduler.LinearLR(own, 0.1, total_iters=2), lr_scheduler.ExponentialLR(own, 0.9)],
        [2],
    ),
    "by_group": lambda own: lr_scheduler.LambdaLR(
        own, [lambda n, k=k: 1 / (1 + k * n) for k in range(len(own.param_groups))]
    ),
    "chained": lambda own: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(own, 0.5, 2), lr_scheduler.StepLR(own, 2)]
    ),
}
ONE_CYCLE = {
    "max_lr": 0.2, "total_steps": STEPS + 1, "three_phase": True,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in")  # of torch's SequentialLR


def by_torch(model, optimizers, scheduler=None, every="step", losses=()):
    for number, (x, y) in enumerate(batches(STEPS, 8)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
        ended = (number + 1) % EPOCH == 0
        if scheduler is not None and (every == "step" or ended):
            scheduler.step(*itertools.islice(losses, number // EPOCH, number // EPOCH + 1))
    return model


def by_simulator(model, losses=(), **settings):
    simulator = Simulator(model, workers=1, **settings)
    for number, (x, y) in enumerate(batches(STEPS, 8)):
        simulator.step(x, y, epoch=number // EPOCH)
        if (number + 1) % EPOCH == 0 and losses:
            simulator.end_epoch({"val_loss": losses[number // EPOCH]})
    return model


def assert_identical(model, wanted):
    for (name, own), value in zip(model.named_parameters(), wanted.parameters(), strict=True):
        assert torch.equal(own, value), name


def groups(model):
    named = dict(model.named_parameters())
    decayed = [p for p in named.values() if p.dim() > 1]
    return [
        {"params": decayed},
        {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0, "lr": 0.02},
    ]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_is_torchs(name, options):
    model = batch_norm_mlp()
    wanted = by_torch(model, [getattr(torch.optim, name)(model.parameters(), **options)])
    regime = {0: {"optimizer": name, **options}}
    assert_identical(by_simulator(batch_norm_mlp(), regime=regime), wanted)


@pytest.mark.quick_cases(24)
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(
    ("make", "every"),
    [(make, "step") for make in SCHEDULERS.values()] + [(SCHEDULERS["cosine"], "epoch")],
    ids=[*SCHEDULERS, "cosine-epoch"],
)
def test_groups_and_a_scheduler_by_object_are_torchs(name, options, make, every):
    kind, models = getattr(torch.optim, name), [batch_norm_mlp() for _ in range(2)]
    made = [kind(groups(model), **options) for model in models]
    schedulers = [None if make is None else make(own) for own in made]
    wanted = by_torch(models[0], made[:1], schedulers[0], every)
    given = {} if make is None else {"scheduler": schedulers[1], "scheduler_every": every}
    assert_identical(by_simulator(models[1], optimizer=made[1], **given), wanted)


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_scheduler_by_function_is_torchs(make):
    model = batch_norm_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wanted = by_torch(model, [optimizer], None if make is None else make(optimizer), "epoch")
    given = {"optimizer": torch.optim.AdamW, "lr": 0.01, "scheduler": make}
    assert_identical(by_simulator(batch_norm_mlp(), **given), wanted)


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_one_cycle_moves_momentum_too(name):
    options = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    model = batch_norm_mlp()
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    wanted = by_torch(model, [optimizer], lr_scheduler.OneCycleLR(optimizer, **ONE_CYCLE))
    scheduler = {"name": "OneCycleLR", **ONE_CYCLE, "every": "step"}
    regime = {0: {"optimizer": name, **options, "scheduler": scheduler}}
    assert_identical(by_simulator(batch_norm_mlp(), regime=regime), wanted)


def test_a_plateau_of_the_validation_loss_lowers_lr():
    losses = [1.0, 2.0, 0.5, 0.6]
    model = batch_norm_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    wanted = by_torch(model, [optimizer], plateau, "epoch", losses)
    given = {"lr": 0.1, "scheduler": "ReduceLROnPlateau:factor=0.3, patience=0"}
    assert_identical(by_simulator(batch_norm_mlp(), losses, **given), wanted)
    assert optimizer.param_groups[0]["lr"] < 0.1


def muon(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.003)]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="a newer torch has it")
def test_two_optimizers_by_object_are_torchs():
    model, own = batch_norm_mlp(), batch_norm_mlp()
    wanted = by_torch(model, muon(model))
    assert_identical(by_simulator(own, optimizer=muon(own)), wanted)
    assert_identical(by_simulator(batch_norm_mlp(), optimizer=muon), wanted)
