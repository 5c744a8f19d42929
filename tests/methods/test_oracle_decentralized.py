"""Gossip on quadratics, held to what the code that went with CHOCO-SGD computed.

There top-k keeps the floor of a fraction, and ECD with top-k touches only the coordinates of
replicas that were sent; ours decays all of them, as the paper has it, so these two are not held.
"""

import torch
from torch import nn

from simsgd import Simulator
from simsgd.bench.consensus import gossip
from simsgd.methods.algorithms.choco import Choco

from ..reference_data import DATA, cases, each, tensor

ALGORITHMS = {
    "CHOCO-SGD": "choco",
    "D-PSGD": "dpsgd",
    "DCD-PSGD": "dcd",
    "ECD-PSGD": "ecd",
    "DeepSqueeze": "deepsqueeze",
    "centralised SGD": "allreduce",
    "EF-signSGD": "allreduce",
}
COPIES = ("replica", "before", "sum")  # of parameters, in the state of an algorithm with replicas
FLOOR = """
import math
from dataclasses import dataclass
from decimal import Decimal

from simsgd.methods.compressors import Compressor
from simsgd.communication.messages import Sparse


@dataclass(frozen=True)
class Floor(Compressor):
    dropped: float
    biased = True

    def compress(self, x, state, step):
        kept = 1 - Decimal(str(self.dropped))
        k = max(1, math.floor(kept * x.shape[1]))
        index = x.abs().topk(k).indices.sort().values
        return Sparse.of(x.gather(1, index), index, x.shape[1])
"""


class Quadratic(nn.Module):
    """A x for the parameters of several layers laid end to end."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(n) for n in layers)

    def forward(self, a):  # [1, rows, n]
        return a @ torch.cat(list(self.layers))


def half_squares(output, b):
    return 0.5 * (output - b).square().sum()


def compressor(params, folder):
    """Return the spec of a case's compressor."""
    (folder / "floor.py").write_text(FLOOR)
    return {
        "none": "none",
        "sign": "sign",
        "compress_top_k": f"{folder / 'floor.py'}:Floor:{params['compress_ratio_dropped']}",
    }[params["compressor"]]


def simulator(case, folder):
    params = case["params"]
    algorithm = ALGORITHMS[case["name"].partition("_")[0]]
    more = {}
    if algorithm != "allreduce":
        more["topology"] = params["topology"]
    if params["consensus_stepsize"] is not None:
        more["consensus_stepsize"] = params["consensus_stepsize"]
    return Simulator(
        Quadratic(params["layers"]),
        half_squares,
        workers=params["nodes"],
        algorithm=algorithm,
        compressor=compressor(params, folder),
        memory="residual" if "EF" in case["name"] else "none",
        compress_if="all",
        lr=params["lr"],
        momentum=params["momentum"],
        nesterov=params["nesterov"],
        weight_decay=params["weight_decay"],
        **more,
    )


def start(simulation, x0):
    """Let the workers begin at x0 [W, n], and what an algorithm holds of them too."""
    state = simulation.state_dict()
    layers = state["parameters"]
    parts = x0.split([layer.shape[-1] for layer in layers.values()], dim=1)
    for name, part in zip(list(layers), parts, strict=True):
        layers[name] = part if layers[name].dim() == 2 else part[0]
        exchange = state["voices"][name]["exchange"]
        for held in COPIES if "replica" in exchange else ():
            if held in exchange:
                exchange[held].copy_(part)
    simulation.load_state_dict(state)


def held(case):
    return not (case["name"].startswith("ECD") and "top_k" in case["name"])


@each("decentralized_choco", lambda case: not case["name"].startswith("gossip_only"))
def test_choco(case, tmp_path):
    check(case, tmp_path)


@each("decentralized_choco", lambda case: case["name"].startswith("gossip_only"))
def test_gossip_alone(case, tmp_path):
    exchange = Choco("ring", case["params"]["consensus_stepsize"])
    x = tensor(case["x0"])
    mean, wanted = x.mean(0), tensor(case["expected"]["consensus_distance_sq"])
    got = gossip(exchange, compressor(case["params"], tmp_path), x, len(wanted))[1:]
    assert torch.allclose(len(x) * torch.tensor(got).square(), wanted, rtol=1e-5)
    assert torch.allclose(x.mean(0), mean, atol=1e-6)


@each("decentralized_dcd")
def test_dcd(case, tmp_path):
    check(case, tmp_path)


@each("decentralized_ecd", held)
def test_ecd(case, tmp_path):
    check(case, tmp_path)


@each("decentralized_deepsqueeze")
def test_deepsqueeze(case, tmp_path):
    check(case, tmp_path)


@each("decentralized_dpsgd")
def test_dpsgd_and_the_centralized(case, tmp_path):
    check(case, tmp_path)


def check(case, folder):
    simulation = simulator(case, folder)
    start(simulation, tensor(case["x0"]))
    a, b = tensor(case["A"]), tensor(case["b"])
    expected = case["expected_by_node_then_step"]
    for step in range(len(expected[0])):
        simulation.step(a, b, epoch=0)
        wanted = tensor([node[step]["x"] for node in expected])
        got = torch.cat(
            [p.expand(len(wanted), -1) for p in simulation.state_dict()["parameters"].values()], 1
        )
        assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max())), (
            f"step {step + 1}"
        )


def test_every_method_of_the_data_is_known():
    files = sorted(path.stem for path in DATA.glob("decentralized_*.json"))
    methods = {case["name"].partition("_")[0] for topic in files for case in cases(topic)}
    assert methods - {"gossip"} == set(ALGORITHMS)
