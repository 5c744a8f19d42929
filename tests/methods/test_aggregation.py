import pytest
import torch

from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Dense
from simsgd.communication.segments import Segment
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms import AllReduce, ExchangeContext
from simsgd.methods.compressors import MultiRound, StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.sign import Sign
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.memories import LocalMomentum
from simsgd.registry import build
from simsgd.settings import SettingError

from ..toy import normal

VOTE = AllReduce("vote")


def exchange(how, x, compressor, dense=False):
    """Return the message, what is aggregated, and the transfers."""
    workers, n = x.shape
    segment = Segment("s", ("s",), (torch.Size([n]),), dense)
    channel = Channel(InProcess(), Ledger(workers), Wire())
    key = RandomKey(0, torch.arange(workers)).fold_in(0, "s")
    state = compressor.init(x)
    message, aggregated = how.gradients(
        x, ExchangeContext(compressor, state, StepInfo(key), segment, channel)
    )
    return message, aggregated, channel.ledger


def test_by_default_the_aggregate_is_the_mean():
    x = normal(3, 20)
    _, aggregated, _ = exchange(AllReduce(), x, NoCompression())
    assert torch.allclose(aggregated, x.mean(0))


def test_a_vote_is_the_sign_of_the_sum_of_signs():
    x = torch.tensor([[9.0, -1, 1, -5], [-1, -1, 1, -5], [-1, -1, -9, 1]])
    assert exchange(VOTE, x, Sign(scale=None))[1].tolist() == [-1, -1, 1, -1]


def test_a_tied_vote_is_plus_one():
    x = torch.tensor([[1.0, -1, 0], [-1, 1, 0]])
    assert exchange(VOTE, x, Sign(scale=None))[1].tolist() == [1, 1, 1]


def test_the_size_of_a_vote_does_not_count():
    x = normal(5, 30)
    scales = torch.tensor([1e-9, 1, 1e9, 3, 0.1]).unsqueeze(1)
    aggregated = exchange(VOTE, x, Sign())[1]
    assert torch.equal(exchange(VOTE, x * scales, Sign())[1], aggregated)


def test_one_bit_an_entry_goes_up_and_one_comes_down():
    _, _, ledger = exchange(VOTE, normal(4, 33), Sign(scale=None))
    sent = [(t.direction, t.collective, t.payload.tolist()) for t in ledger.transfers]
    assert sent == [("up", "gather", [5] * 4), ("down", "broadcast", [5] * 4)]


def test_a_vote_crosses_the_network_once_each_way_to_all_but_the_one_who_counts():
    _, _, ledger = exchange(VOTE, normal(4, 80), Sign(scale=None))
    closed = ledger.close(dense=320)
    assert (closed.payload.tolist(), closed.downlink.tolist()) == ([10] * 4, [10] * 4)
    assert closed.network.item() == 2 * 3 * 10


def test_a_vote_of_one_worker_sends_nothing():
    _, _, ledger = exchange(VOTE, normal(1, 80), Sign(scale=None))
    assert ledger.close(dense=320).network.item() == 0


def test_what_is_exempt_is_averaged_all_the_same():
    x = normal(3, 20)
    _, aggregated, ledger = exchange(VOTE, x, NoCompression(), dense=True)
    assert torch.allclose(aggregated, x.mean(0))
    assert [t.direction for t in ledger.transfers] == ["up"]


def test_the_message_is_what_each_worker_voted():
    x = normal(3, 20)
    message, _, _ = exchange(VOTE, x, Sign(scale=None))
    assert torch.equal(message.to_dense(), x.sign())


@pytest.mark.parametrize(
    "compressor", [TopK(0.1), build("compressor", "randomk:0.1,shared=true")[0]]
)
def test_a_vote_on_few_entries_is_refused(compressor):
    with pytest.raises(SettingError, match="aggregate needs every entry of each worker"):
        VOTE.check_compressor(compressor)


def test_an_unknown_aggregate_is_refused():
    with pytest.raises(SettingError, match="aggregate is not known, got mediam"):
        AllReduce("mediam")


def test_signum_moves_by_the_sign_of_most_momenta():
    memory, compressor = LocalMomentum(0.9), Sign(scale=None)
    state = memory.init(torch.empty(3, 40), dense=False)
    momenta = torch.zeros(3, 40)
    for step in range(5):
        grad = normal(3, 40, seed=step)
        momenta = 0.9 * momenta + 0.1 * grad
        x = memory.compensate(grad.clone(), state)
        message, aggregated, _ = exchange(VOTE, x, compressor)
        memory.update(x, message, state)
        assert torch.equal(aggregated, momenta.sign().sum(0).sign())


class Twice(MultiRound):
    """Send the first half, then what the others' mean of it makes of the rest."""

    biased = True

    def rounds(self, x, state, step):
        half = x.shape[1] // 2
        sent, mean = yield Dense.of(x[:, :half])
        rest, second = yield Dense.of(x[:, half:] + mean.sum(1, keepdim=True))
        whole = Dense.of(torch.cat([sent.to_dense(), rest.to_dense()], 1))
        return whole, torch.cat([mean, second], 1)


def test_rounds_get_the_mean_of_the_last_one():
    x = normal(3, 20)
    _, aggregated, _ = exchange(AllReduce(), x, Twice())
    mean = x.mean(0)
    wanted = torch.cat([mean[:10], mean[10:] + mean[:10].sum()])
    assert torch.allclose(aggregated, wanted, atol=1e-6)


def test_the_bytes_of_each_round_are_counted():
    _, _, ledger = exchange(AllReduce(), normal(3, 20), Twice())
    assert [t.payload.tolist() for t in ledger.transfers] == [[40] * 3, [40] * 3]


def test_alone_the_rounds_of_a_worker_get_its_own_messages():
    x = normal(3, 20)
    message = Twice().compress(x, {}, StepInfo(RandomKey(0, torch.arange(3))))
    wanted = x[:, 10:] + x[:, :10].sum(1, keepdim=True)
    assert torch.allclose(message.to_dense()[:, 10:], wanted, atol=1e-6)
