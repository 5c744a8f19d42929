"""QG-DSGDm: the momentum is what a worker's model moved by, its neighbors' mixing included."""

import pytest
import torch
import torch.nn.functional as F

from simsgd import SettingError, Simulator
from simsgd.communication.topology import topology

from .. import toy

W, STEPS = 5, 7
RATES = (0.1, 0.05, 0.2)


def trained(algorithm="qg_dsgdm", model=None, rates=RATES, **settings):
    regime = {epoch: {"optimizer": "SGD", "lr": lr} for epoch, lr in enumerate(rates)}
    simulator = Simulator(
        model or toy.mlp(), workers=W, algorithm=algorithm, regime=regime, **settings
    )
    records = [simulator.step(x, y, t % 3) for t, (x, y) in enumerate(toy.batches(STEPS, 3 * W))]
    return simulator, records


def by_hand(mixing_at, beta, mu, nesterov=False, rate_of=lambda name, step: RATES[step % 3]):
    """Return the workers' models of the paper's Algorithm 1, {name: [W, *shape]}."""
    models = [toy.mlp() for _ in range(W)]
    momenta = [{n: torch.zeros_like(p) for n, p in own.named_parameters()} for own in models]
    for step, (x, y) in enumerate(toy.batches(STEPS, 3 * W)):
        before = [{n: p.detach().clone() for n, p in own.named_parameters()} for own in models]
        for own, m, a, b in zip(models, momenta, x.chunk(W), y.chunk(W), strict=True):
            named = dict(own.named_parameters())
            gradients = torch.autograd.grad(F.cross_entropy(own(a), b), list(named.values()))
            for (name, p), g in zip(named.items(), gradients, strict=True):
                moved = beta * m[name] + g
                p.data.sub_(g + beta * moved if nesterov else moved, alpha=rate_of(name, step))
        weights = mixing_at(step)
        for name in before[0]:
            half = torch.stack([dict(own.named_parameters())[name].detach() for own in models])
            mixed = torch.einsum("ij,j...->i...", weights, half)
            for i, own in enumerate(models):
                dict(own.named_parameters())[name].data.copy_(mixed[i])
                change = (before[i][name] - mixed[i]) / rate_of(name, step)
                momenta[i][name] = mu * momenta[i][name] + (1 - mu) * change
    names = before[0]
    return {n: torch.stack([dict(m.named_parameters())[n].detach() for m in models]) for n in names}


def assert_models(simulator, wanted):
    for name, value in simulator.parameters().items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", ["ring", "one-peer"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_quasi_global_momentum_is_its_formulas_while_the_lr_changes(graph, nesterov):
    spec = f"qg_dsgdm:beta=0.7,mu=0.8,nesterov={str(nesterov).lower()}"
    simulator, _ = trained(spec, topology=graph)
    whole = topology(graph, W)
    assert_models(simulator, by_hand(lambda step: whole.at(step).weights, 0.7, 0.8, nesterov))


@pytest.mark.parametrize("settings", [{}, {"granularity": "model"}, {"plan": "gpu"}], ids=str)
def test_parameters_with_an_lr_of_their_own_have_their_momentum_in_its_units(settings):
    groups = [{"params": "*bias", "lr_mult": 0.5}, {"params": "0.*", "lr": 0.03}]
    simulator, _ = trained(
        "qg_dsgdm:beta=0.7,mu=0.8", topology="ring", param_groups=groups, **settings
    )

    def own(name, step):
        lr = RATES[step % 3]
        return lr / 2 if "bias" in name else 0.03 if name.startswith("0.") else lr

    mixing = topology("ring", W).at(0).weights
    assert_models(simulator, by_hand(lambda step: mixing, 0.7, 0.8, rate_of=own))


@pytest.mark.slow
def test_without_a_weight_of_the_momentum_it_is_dpsgd():
    one, records = trained("qg_dsgdm:beta=0", topology="ring", compressor="qsgd:15")
    other, others = trained("dpsgd", topology="ring", compressor="qsgd:15")
    for name, value in other.parameters().items():
        assert torch.equal(one.parameters()[name], value)
    assert [r.payload_bytes for r in records] == [r.payload_bytes for r in others]


def test_on_a_complete_graph_the_mean_moves_as_with_one_momentum():
    """There (x - x') / lr is the mean of all steps: m = (mu + (1 - mu) beta) m + (1 - mu) g."""
    simulator, _ = trained("qg_dsgdm:beta=0.9,mu=0.6", topology="complete")
    model = toy.mlp()
    m = [torch.zeros_like(p) for p in model.parameters()]
    for step, (x, y) in enumerate(toy.batches(STEPS, 3 * W)):
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        for i, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
            moved = g + 0.9 * m[i]
            p.data.sub_(moved, alpha=RATES[step % 3])
            m[i] = 0.6 * m[i] + 0.4 * moved
    assert simulator.consensus_distance() < 1e-12
    wanted = {n: p.detach().expand(W, *p.shape) for n, p in model.named_parameters()}
    assert_models(simulator, wanted)


def test_an_lr_of_zero_leaves_a_momentum_that_decays():
    simulator, _ = trained(rates=(0.1, 0.0, 0.1), topology="ring")
    assert all(value.isfinite().all() for value in simulator.parameters().values())


@pytest.mark.parametrize("spec", ["beta=1", "mu=1", "beta=-0.1"])
def test_a_momentum_that_never_ends_is_refused(spec):
    with pytest.raises(SettingError, match=r"must lie in \[0, 1\)"):
        Simulator(toy.mlp(), workers=W, lr=0.1, algorithm=f"qg_dsgdm:{spec}")
