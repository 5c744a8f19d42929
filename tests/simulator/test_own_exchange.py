"""What methods of a user's own give in an exchange is looked at, in the first steps and later."""

import pytest
import torch

from simsgd.methods import (
    Aggregation,
    Compressor,
    Dense,
    Exchanged,
    GradientAlgorithm,
    MultiRound,
    ParameterAlgorithm,
    Sparse,
)
from simsgd.methods.aggregations.contract import ServerRule

from .own_kinds import keeper, made, refused, sender, stepped


def _from(step, usual, other):
    """Return a compress that is `usual` before a step, and `other` from then on."""

    def compress(self, x, state, info):
        return (other if info.number >= step else usual)(x)

    return compress


def _first(x, order=(0, 1)):
    order = order if x.shape[1] > 1 else (0,)
    index = torch.tensor([order] * len(x))
    return Sparse.of(x.gather(1, index), index, x.shape[1])


def _doubled(x):
    return Dense.of(x.mul_(2))


ROWS = {
    "rolls": lambda self, x, state, step: Dense.of(x.roll(1, 0)),
    "indexes by the mean": lambda self, x, state, step: Sparse.of(
        x[:, x.mean(0).abs().argmax()].unsqueeze(1),
        x.mean(0).abs().argmax().expand(len(x), 1),
        x.shape[1],
    ),
    "scales by the largest": lambda self, x, state, step: Dense.of(x.sign() * x.abs().max()),
    "reads other gradients": lambda self, x, state, step: Dense.of(x + step.gradient.mean(0)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_depends_on_other_rows_is_refused(name):
    own = sender(ROWS[name], needs_gradient=True)
    refused("gives a worker another message where other workers have other numbers", compressor=own)


def _chosen_by_key(self, x, state, step):
    scores = step.key.shared().uniform((1, x.shape[1]))
    index = scores.argmax(1, keepdim=True).expand(len(x), 1)
    return Sparse.of(x.gather(1, index), index, x.shape[1])


RIGHT = {
    "its own scale": lambda self, x, state, step: Dense.of(
        x.sign() * x.abs().mean(1, keepdim=True)
    ),
    "random": lambda self, x, state, step: Dense.of(x * torch.rand_like(x).round()),
    "what it kept": lambda self, x, state, step: Dense.of(state["e"].mul_(0.5).add_(x)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_row_by_itself_is_taken(name):
    stepped(3, compressor=sender(RIGHT[name], init=lambda self, like: {"e": like * 0}))


def test_a_largest_number_of_all_workers_may_be_asked_for():
    def compress(self, x, state, step):
        return Dense.of(x.sign() * step.global_max)

    stepped(3, compressor=sender(compress, needs_global_max=True))


LATER = {
    "changes its input": _from(1, Dense.of, _doubled),
    "changes its input, late": _from(4, Dense.of, _doubled),
    "an index twice": _from(1, _first, lambda x: _first(x, (0, 0))),
    "indices that do not ascend": _from(1, _first, lambda x: _first(x, (1, 0))),
    "has a compress that returns no message but a NoneType": _from(1, Dense.of, lambda x: None),
    "gives what cannot be exchanged: AttributeError": _from(3, Dense.of, lambda x: None),
    "has a compress that gives": _from(3, Dense.of, lambda x: Dense.of(torch.cat([x, x], 1))),
}


@pytest.mark.parametrize(("message", "compress"), LATER.items(), ids=LATER)
def test_a_compressor_that_goes_wrong_later_is_refused(message, compress):
    match = message.removesuffix(", late")
    refused(match, steps=5, compressor=sender(compress), memory="none")


@pytest.mark.parametrize("algorithm", ["allreduce", "local:local_steps=1"])
def test_counts_that_go_wrong_later_are_refused(algorithm):
    def compress(self, x, state, step):
        counts = torch.full((len(x),), 1 if step.number < 3 else 5)
        index = torch.zeros(len(x), 1, dtype=torch.int64)
        return Sparse.of(x[:, :1], index, x.shape[1], counts)

    own = sender(compress)
    refused(
        "sends a message that has counts outside .0, 1.",
        steps=5,
        compressor=own,
        algorithm=algorithm,
    )


def test_a_message_of_other_entries_is_refused_beside_a_memory_too():
    own = sender(_from(3, Dense.of, lambda x: Dense.of(torch.cat([x, x], 1))))
    refused("has a compress that gives", steps=5, compressor=own, memory="residual")


def _counted(wrong, right=lambda value: value):
    """Return a call that is right twice for each of two segments, and wrong from then on."""
    calls = []

    def call(self, value, *others):
        calls.append(1)
        return wrong(value) if len(calls) > 4 else right(value)

    return call


MEMORY = {
    "has a compensate that gives": {"compensate": _counted(lambda x: x[:2])},
    "has a compensate that gives NoneType": {"compensate": _counted(lambda x: None)},
    "has an? on_aggregate that gives NoneType": {"on_aggregate": lambda self, mean, state: None},
    "on_aggregate that gives .4, ": {"on_aggregate": lambda self, mean, state: mean.repeat(4, 1)},
    "on_aggregate that gives torch.float64": {"on_aggregate": lambda self, x, state: x.double()},
}


@pytest.mark.parametrize(("message", "body"), MEMORY.items(), ids=MEMORY)
def test_a_wrong_memory_is_refused(message, body):
    refused(message, steps=3, memory=keeper(**body), compressor="topk:0.5")


@pytest.mark.parametrize(("message", "body"), MEMORY.items(), ids=MEMORY)
def test_a_wrong_memory_is_refused_beside_an_exchange_of_models(message, body):
    body = {name: body[name] for name in body if name == "on_aggregate"}
    body = body or {"compensate": lambda self, x, state: None if "None" in message else x[:2]}
    refused(message, memory=keeper(**body), compressor="topk:0.5", algorithm="local:local_steps=1")


def test_what_a_memory_keeps_is_not_changed_by_a_limit_on_the_gradient():
    def on_aggregate(copied):
        def call(self, mean, state):
            state["h"].mul_(0.5).add_(mean)
            return state["h"][0].clone() if copied else state["h"][0]

        return call

    limit = {"regularizer": {"name": "GradClip", "value": 1e-3}}
    models = [
        stepped(
            3,
            memory=keeper(
                init=lambda self, like, dense: {"h": torch.zeros(1, like.shape[1])},
                on_aggregate=on_aggregate(copied),
            ),
            regime=[{"epoch": 0, **limit}],
        ).parameters()
        for copied in (False, True)
    ]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def _grad(gradients, **body):
    return made(GradientAlgorithm, gradients=gradients, **body)


def _mean(self, compensated, context, state=None):
    return context.channel.all_reduce_mean(context.compress(compensated), context.segment)


def _with_mean(change):
    def gradients(self, compensated, context, state=None):
        message, mean = _mean(self, compensated, context)
        return message, change(mean)

    return gradients


GRADIENTS = {
    "gradients that gives torch.float64": _with_mean(lambda mean: mean.double()),
    "gradients that gives .4, ": _with_mean(lambda mean: mean.repeat(4, 1)),
    "no pair of a message": lambda self, x, context, state=None: None,
    "fails at line .* of test_own_exchange.py: AttributeError": (
        lambda self, x, context, state=None: context.channel.all_reduce_mean(x, context.segment)
    ),
}


@pytest.mark.parametrize(("message", "gradients"), GRADIENTS.items(), ids=GRADIENTS)
def test_a_wrong_exchange_of_gradients_is_refused(message, gradients):
    refused(message, algorithm=_grad(gradients))


def test_gradients_that_go_wrong_later_are_refused():
    calls = []

    def gradients(self, compensated, context, state=None):
        calls.append(1)
        message, mean = _mean(self, compensated, context)
        return (message, mean) if len(calls) < 7 else (message, mean[:1])

    refused("has a gradients that gives", steps=5, algorithm=_grad(gradients))


def test_a_wrong_step_of_the_optimizer_is_told_by_its_line():
    def apply(self, optimizer, aggregated):
        optimizer.step({name: own[:1] for name, own in aggregated.items()})

    refused("fails at line .*RuntimeError", algorithm=_grad(_mean, apply=apply))


def _param(**body):
    def parameters(self, x, context, state):
        return Exchanged.of(x, context.compress(x))

    return made(ParameterAlgorithm, **{"parameters": parameters, **body})


MODELS = {
    "local_gradient that gives NoneType": {"local_gradient": lambda self, g, x, s, t: None},
    "local_gradient that gives .6": {"local_gradient": lambda self, g, x, s, t: g[0]},
    "fails at line .*: IndexError": {
        "parameters": lambda self, x, context, state: Exchanged.of(x[0], context.compress(x))
    },
}


@pytest.mark.parametrize(("message", "body"), MODELS.items(), ids=MODELS)
def test_a_wrong_exchange_of_models_is_refused(message, body):
    refused(message, algorithm=_param(**body))


def _mixes(self, x, context, state):
    x.copy_(x.mean(0).expand_as(x))


def _pulls(self, x, context, state):
    x.lerp_(state["anchor"], 0.1)


def test_models_mixed_without_a_message_are_refused():
    refused("mixes the models of workers and returns None", algorithm=_param(parameters=_mixes))


def test_each_model_may_be_changed_by_itself_without_a_message():
    begun = {"init": lambda self, x, segment: {"anchor": x.clone()}}
    stepped(4, algorithm=_param(parameters=_pulls, **begun))


def test_a_compressor_of_models_may_read_the_gradient():
    own = sender(lambda self, x, state, step: Dense.of(step.gradient), needs_gradient=True)
    stepped(2, compressor=own, algorithm="local:local_steps=1")


NEEDS = {
    "reads step.gradient, which is None without needs_gradient.*needs_gradient = True": {
        "compress": lambda self, x, state, step: Dense.of(step.gradient.abs())
    },
    "local_max that gives .. in place of .4, 1.": {
        "compress": lambda self, x, state, step: Dense.of(x),
        "local_max": lambda self, x: x.max(),
        "needs_global_max": True,
    },
    "no message but a Tensor": {
        "compress": lambda self, x, state, step: x,
        "needs_global_max": True,
    },
}


@pytest.mark.parametrize(("message", "body"), NEEDS.items(), ids=NEEDS)
def test_what_a_compressor_reads_and_needs_is_told(message, body):
    refused(message, compressor=made(Compressor, biased=True, **body))


def _rounds(result, first=Dense.of):
    def rounds(self, x, state, step):
        message, mean = yield first(x)
        return result(x, message, mean)

    return rounds


ROUNDS = {
    "is no generator but gives a NoneType": lambda self, x, state, step: None,
    "yields no message but a Tensor": _rounds(None, lambda x: x),
    "returns no pair": _rounds(lambda x, message, mean: message),
    "rounds that gives .4, ": _rounds(lambda x, message, mean: (message, x)),
    "changes its input": _rounds(lambda x, message, mean: (Dense.of(x.mul_(2)), mean)),
}


@pytest.mark.parametrize(("message", "rounds"), ROUNDS.items(), ids=ROUNDS)
def test_a_wrong_compressor_of_rounds_is_refused(message, rounds):
    refused(message, compressor=made(MultiRound, biased=True, rounds=rounds))


def test_a_compressor_of_rounds_is_taken():
    right = _rounds(lambda x, message, mean: (message, mean))
    stepped(3, compressor=made(MultiRound, biased=True, rounds=right))


def test_a_number_in_a_state_is_refused():
    def compress(self, x, state, step):
        state["n"] = state.get("n", 0) + 1
        return Dense.of(x)

    refused("puts 'n', no tensor but int, into its state", compressor=sender(compress))


def test_a_number_in_the_state_of_an_algorithm_is_refused():
    def gradients(self, compensated, context, state=None):
        state["n"] = 1
        return _mean(self, compensated, context)

    refused("algorithm puts 'n', no tensor but int, into its state", algorithm=_grad(gradients))


def test_a_compressor_for_a_shape_is_one():
    own = sender(lambda self, x, s, p: Dense.of(x), for_shape=lambda self, shape: None)
    refused("no compressor but a NoneType", compressor=own, algorithm="local:local_steps=1")


def test_an_error_of_a_method_itself_stays_as_it_is():
    def compress(self, x, state, step):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        stepped(compressor=sender(compress))


def _rule(change):
    def aggregate(self, message, segment, channel, at_server):
        return change(*channel.all_reduce_mean(message, segment))

    return made(Aggregation, aggregate=aggregate)


RULES = {
    "returns no pair": lambda sent, mean: None,
    "returns no pair of": lambda sent, mean: mean,
    "aggregate that gives .1, ": lambda sent, mean: (sent, mean.unsqueeze(0)),
    "aggregate that gives median": lambda sent, mean: (sent, sent.to_dense().median(0)),
    "aggregate that gives torch.float64": lambda sent, mean: (sent, mean.double()),
    "aggregate that gives .. in place": lambda sent, mean: (sent, mean.sum()),
}


@pytest.mark.parametrize(("message", "change"), RULES.items(), ids=RULES)
def test_a_wrong_aggregation_is_refused(message, change):
    refused(message, aggregate=_rule(change))


def test_a_wrong_rule_of_a_server_is_refused():
    refused("of_rows that gives .4, ", aggregate=made(ServerRule, of_rows=lambda self, rows: rows))


def test_a_right_aggregation_is_taken():
    stepped(2, aggregate=_rule(lambda sent, mean: (sent, mean)))
    stepped(2, aggregate=made(ServerRule, of_rows=lambda self, rows: rows.median(0).values))


def test_a_momentum_that_is_no_number_is_refused():
    refused("has momentum 'x', got Mine", memory=keeper(momentum="x"))


def test_an_answer_without_property_is_refused():
    own = made(Compressor, biased=lambda self: False, compress=lambda self, x, s, p: Dense.of(x))
    refused("neither true nor false.*write @property above it", compressor=own)


COUNTED = {
    "whose payload_bytes are int": {"payload_bytes": lambda self: 4},
    "whose payload_bytes are .. in torch.int64": {"payload_bytes": lambda self: torch.tensor(4)},
    "whose entries are .4. in torch.float32": {"entries": lambda self: torch.ones(4)},
}


@pytest.mark.parametrize(("message", "body"), COUNTED.items(), ids=COUNTED)
def test_a_message_of_another_class_counts_its_rows(message, body):
    kind = type("Counted", (Dense,), body)
    own = sender(lambda self, x, state, step: kind.of(x))
    refused(message, compressor=own)
