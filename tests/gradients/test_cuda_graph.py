"""Gradients replayed as a CUDA graph are those of calls, or there is no graph and a note says why.

On a CPU a graph is what `replayed_calls` makes of it.
"""

from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import simsgd
from simsgd.gradients.cuda_graph import CudaGraphs
from simsgd.registry import find
from simsgd.settings import SettingError
from simsgd.simulator import components

from .replayed_calls import replayable

REPLAYED = "gradients are replayed as a CUDA graph"


class Net(nn.Module):
    """A small network of all that keeps a state or draws: BatchNorm, dropout; and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(48, 5)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [b, 5] of images [b, 1, 6, 6]."""
        x = self.dropout(F.relu(self.norm(self.first(x)))).flatten(1)
        out: Tensor = self.last(x)
        return out * self.scale


class Counting(Net):
    """A network that knows how often it was called."""

    def forward(self, x: Tensor) -> Tensor:
        """Return scores that differ from call to call."""
        self.scale *= 1.1
        return super().forward(x)


class Toggling(Net):
    """A network that takes turns."""

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, every other time with the sign changed."""
        self.scale = -self.scale
        return super().forward(x)


class Waiting(Net):
    """A network that reads a number of the device."""

    def forward(self, x: Tensor) -> Tensor:
        """Return scores divided by a number of Python's."""
        return super().forward(x) / (1 + abs(float(self.last.weight[0, 0].detach())))


def batches(number: int, samples: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(samples, 1, 6, 6, generator=generator, dtype=torch.float64),
            torch.randint(5, (samples,), generator=generator),
        )
        for _ in range(number)
    ]


def simulator(
    monkeypatch: pytest.MonkeyPatch, graphs: bool, net: type[Net] = Net, **settings: object
) -> simsgd.Simulator:
    made = lambda engine, *_: CudaGraphs(engine, replayable) if graphs else None  # noqa: E731
    monkeypatch.setattr(components, "graphs_of", made)
    torch.manual_seed(0)
    settings = {"workers": 4, "lr": 0.1, "momentum": 0.9, "plan": "gpu", **settings}
    return simsgd.Simulator(net().double(), **settings)


def state(simulated: simsgd.Simulator) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in simulated.evaluation_model().state_dict().items()}


def trained(make: partial, graphs: bool, **settings: object) -> tuple[list[float], dict, str]:
    simulated = make(graphs=graphs, **settings)
    losses = [float(simulated.step(*batch, epoch=0).loss) for batch in batches(5)]
    note = simulated.components.graphs.note if graphs else ""
    return losses, state(simulated), note


def assert_same(one: tuple, other: tuple) -> None:
    assert one[0] == other[0]
    for name, value in one[1].items():
        assert torch.equal(value, other[1][name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"prune": 0.9, "warmup": False}, marks=pytest.mark.slow),
        pytest.param({"compressor": "qsgd:4", "accumulate": 2}, marks=pytest.mark.slow),
        pytest.param({"compressor": "sign", "noise_scale": True}, marks=pytest.mark.slow),
        {"algorithm": "choco", "topology": "ring", "compressor": "topk:0.1"},
        {"algorithm": "fedavg:local_steps=2", "participation": 0.5},
        {"algorithm": "async", "staleness": 2},
        pytest.param({"cluster": "2x2"}, marks=pytest.mark.slow),
        pytest.param({"engine": "vmap"}, marks=pytest.mark.slow),
        {"engine": "auto", "plan": "cpu"},
    ],
    ids=str,
)
def test_replayed_gradients_are_those_of_calls(
    settings: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cluster" in settings:
        settings = {**settings, "workers": 2}
    make = partial(simulator, monkeypatch, **settings)
    one, other = trained(make, True), trained(make, False)
    assert_same(one, other)
    assert one[2] == REPLAYED


@pytest.mark.parametrize(
    ("net", "engine", "note"),
    [
        (Counting, "vmap", "batches or the model's attributes take more than 4 forms"),
        (Toggling, "vmap", "the model changes its attributes in each step"),
        (Waiting, "onepass", "a call cannot be captured: operation not permitted when stream is"),
        (Net, "loop", "engine loop waits for the device"),
        (Net, "threads", "engine threads waits for the device"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_graph_would_get_wrong_has_none(
    net: type[Net], engine: str, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = 1 if net in (Counting, Toggling) else 4  # which only one may have
    make = partial(simulator, monkeypatch, net=net, engine=engine, workers=workers)
    one = trained(make, True)
    assert one[2].startswith(f"no CUDA graph: {note}")
    if net is not Toggling:  # which the calls that were tried have moved on
        assert_same(one, trained(make, False))


def test_what_a_person_changes_between_steps_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for graphs in (True, False):
        simulated = simulator(monkeypatch, graphs)
        model = simulated.components.model
        before = simulated.state_dict()
        for number, batch in enumerate(batches(12)):
            if number == 3:
                model.scale = 2.0
            if number == 6:
                model.first.bias.requires_grad_(False)
            if number == 9:
                simulated.load_state_dict(before)
            simulated.step(*batch, epoch=0)
        results.append(([], state(simulated), ""))
        if graphs:
            assert simulated.components.graphs.note == REPLAYED
    assert_same(*results)


def test_batches_of_two_sizes_have_a_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for graphs in (True, False):
        simulated = simulator(monkeypatch, graphs)
        for few, many in zip(batches(4), batches(4, 12), strict=True):
            simulated.step(*few, epoch=0)
            simulated.step(*many, epoch=0)
        results.append(([], state(simulated), ""))
        if graphs:
            assert len(simulated.components.graphs._graphs) == 2
            assert simulated.components.graphs.note == REPLAYED
    assert_same(*results)


def test_all_but_the_gradients_outlives_the_next_call() -> None:
    torch.manual_seed(0)
    net = Net().double()
    buffers = {name: torch.stack([own] * 4) for name, own in net.named_buffers()}
    graphs = CudaGraphs(find("engine", "onepass")(net, F.cross_entropy), replayable)
    found = []
    for number, (x, y) in enumerate(batches(5)):
        keys = torch.arange(4) + 4 * number
        shaped = x.view(4, 2, *x.shape[1:]), y.view(4, 2)
        found.append(graphs(dict(net.named_parameters()), buffers, *shaped, keys))
    for part in ("loss", "output"):
        own = [getattr(gradients, part) for gradients in found]
        assert not any(torch.equal(*pair) for pair in combinations(own, 2)), part
    means = [gradients.buffers["norm.running_mean"] for gradients in found]
    assert not any(torch.equal(*pair) for pair in combinations(means, 2))


def test_trees_of_tensors_have_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfDict(Net):
        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return super().forward(x["image"])

    simulated = simulator(monkeypatch, True, OfDict)
    for x, y in batches(3):
        simulated.step({"image": x}, y, epoch=0)
    assert simulated.components.graphs.note == "no CUDA graph: batches are not one tensor"


@pytest.mark.slow
def test_the_log_of_a_run_says_once_what_came_of_it(
    kill_runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "graphs_of", lambda engine, *_: CudaGraphs(engine, replayable))
    run = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="run")
    assert run.log.count(f"note: {REPLAYED}") == 1
    monkeypatch.undo()
    run = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="plain", cuda_graph="auto")
    assert run.log.count("note: no CUDA graph: the device is cpu") == 1


def test_there_is_none_on_a_cpu_and_none_unless_asked_for() -> None:
    for settings in ({}, {"cuda_graph": "auto"}):
        assert simsgd.Simulator(Net(), workers=2, lr=0.1, **settings).components.graphs is None
    with pytest.raises(SettingError, match="cuda_graph"):
        simsgd.Simulator(Net(), workers=2, lr=0.1, cuda_graph="on")


@pytest.mark.cuda
@pytest.mark.parametrize("per_worker", [False, True])
def test_a_real_graph_gives_what_calls_give(per_worker: bool) -> None:
    algorithm = {"algorithm": "dpsgd", "topology": "ring"} if per_worker else {}
    results = []
    for wanted in ("auto", "off"):
        torch.manual_seed(0)
        net = Net().double().cuda()
        simulated = simsgd.Simulator(net, workers=4, lr=0.1, cuda_graph=wanted, **algorithm)
        losses = [float(simulated.step(x.cuda(), y.cuda(), epoch=0).loss) for x, y in batches(6)]
        results.append((losses, state(simulated)))
        if wanted == "auto":
            assert simulated.components.graphs.note == REPLAYED
    torch.testing.assert_close(*[losses for losses, _ in results])
    for name, value in results[0][1].items():
        torch.testing.assert_close(value, results[1][1][name])
