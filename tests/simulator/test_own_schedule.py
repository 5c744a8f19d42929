"""What an algorithm of a user's own says of who trains and when is looked at, step by step."""

import pytest
import torch

from simsgd.methods import Dense, Exchanged, GradientAlgorithm, ParameterAlgorithm

from .own_kinds import made, refused, sender, stepped


def _models(**body):
    def parameters(self, x, context, state):
        return Exchanged.of(x.clone(), context.compress(x))

    return made(ParameterAlgorithm, **{"parameters": parameters, **body})


def _gradients(**body):
    def gradients(self, compensated, context, state=None):
        message = context.compress(compensated)
        return context.channel.all_reduce_mean(message, context.segment)

    return made(GradientAlgorithm, gradients=gradients, **body)


def _trains(value):
    return {"participants": lambda self, seed, workers, step, epoch: value(workers)}


def _weighs(value):
    return {"weights": lambda self, seed, workers, step, epoch, samples: value(workers)}


WRONG = {
    "weights that add up to 4 in place of 1": _weighs(torch.ones),
    "weights that give .2. in place of .4.": _weighs(lambda w: torch.ones(2) / 2),
    "inner_state 'nosuch', which is not known": {"inner_state": "nosuch"},
    "client_buffers 'x'.*write local, average or server": {"client_buffers": "x"},
    "averages buffers, and gives no weights": {"client_buffers": "average"},
    "a period of 1.5": {"period": lambda self, epoch: 1.5},
    "a period of 0": {"period": lambda self, epoch: 0},
    "participants that give .5.": _trains(lambda w: torch.ones(5, dtype=torch.bool)),
    "participants that give list": _trains(lambda w: [True] * w),
    "participants in torch.int64": _trains(torch.arange),
    "no participants in step 0": _trains(lambda w: torch.zeros(w, dtype=torch.bool)),
    "links that give .2, 2. in place of .4, 4.": {
        "links": lambda self, seed, workers, step: torch.ones(2, 2, dtype=torch.bool)
    },
}
DELAYS = {
    "delays outside .0, 0., its longest_delay.*let longest_delay be 3": torch.arange,
    "delays that give .2.": lambda workers: torch.zeros(2, dtype=torch.int64),
    "delays in torch.float32": torch.zeros,
}


@pytest.mark.parametrize(("message", "body"), WRONG.items(), ids=WRONG)
def test_a_wrong_schedule_is_refused(message, body):
    refused(message, algorithm=_models(**body))


def test_a_schedule_that_goes_wrong_later_is_refused():
    def participants(self, seed, workers, step, epoch):
        return torch.full((workers,), step < 2)

    refused("no participants in step 2", steps=3, algorithm=_models(participants=participants))


@pytest.mark.parametrize(("message", "delays"), DELAYS.items(), ids=DELAYS)
def test_wrong_delays_are_refused(message, delays):
    own = _gradients(delays=lambda self, seed, workers: delays(len(workers)))
    refused(message, algorithm=own)


def test_a_right_schedule_is_taken():
    body = {
        **_trains(lambda w: torch.arange(w) > 0),
        **_weighs(lambda w: torch.ones(w) / w),
        "period": lambda self, epoch: 2,
    }
    stepped(3, algorithm=_models(**body))


def test_a_memory_beside_one_of_its_own_is_refused_whatever_check_says():
    own = _models(has_own_memory=True, check=lambda self, recipe: None)
    sign = sender(lambda self, x, state, step: Dense.of(x.sign()))
    refused("must be none with algorithm", algorithm=own, compressor=sign, memory="residual")


def test_what_its_check_refuses_is_told_in_one_line():
    def check(self, recipe):
        raise ValueError("wants pairs")

    refused("refuses the settings: wants pairs", algorithm=_models(check=check))
