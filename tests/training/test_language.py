"""Language models, the state that they carry, and runs on text."""

import importlib
import math

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional

import simsgd
from simsgd.catalog import build_model, load
from simsgd.cli import main
from simsgd.config import Config
from simsgd.gradients.sample_squares import sample_squares
from simsgd.keyed_random import RandomKey
from simsgd.results.figures.plot import plot_results
from simsgd.results.perplexity import bits, perplexity
from simsgd.settings import SettingError
from simsgd.simulator.model_shapes import shapes_of
from simsgd.simulator.simulator import Simulator
from simsgd.training.evaluation import evaluate
from simsgd.training.experiment import Experiment

from ..process_group import trained, verified
from ..toy import gradients

W, B, T, V = 3, 4, 6, 11
MODELS = {
    "lstm_lm": {"hidden": 5, "layers": 2, "dropout": 0.3},
    "transformer_lm": {"emb": 8, "heads": 2, "dropout": 0.3},
    "gpt": {"emb": 8, "heads": 2, "layers": 2, "dropout": 0.3},
}
criterion = importlib.import_module("simsgd.models._language").token_loss


def untimed(table):
    """Return a table without its times."""
    return table.drop(columns=[c for c in table.columns if c.endswith("seconds")])


def network(name="lstm_lm", batch=B, **config):
    torch.manual_seed(0)
    model = build_model(name, {**MODELS[name], **config}, V, (T,)).double()
    if hasattr(model, "begin"):
        model.begin(batch)
    return model


def words(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(V, shape, generator=generator), torch.randint(
        V, shape, generator=generator
    )


def states(model, workers=W):
    """Return a state for each worker and stream, as if some text had been read."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(workers, *b.shape, generator=generator, dtype=b.dtype)
        for name, b in model.named_buffers()
    }


# the models


def test_the_lstm_is_that_of_torch():
    model = network(emb=7, tie=False, dropout=0.0)
    theirs = nn.LSTM(7, 5, num_layers=2, batch_first=True).double()
    for number, layer in enumerate(model.layers):
        for kind in ("ih", "hh"):
            for part in ("weight", "bias"):
                own = getattr(getattr(layer, kind), part)
                getattr(theirs, f"{part}_{kind}_l{number}").data.copy_(own)
    x, _ = words(B, T)
    before = states(model, 1)
    model.hidden, model.cell = before["hidden"][0].clone(), before["cell"][0].clone()
    wanted, (h, c) = theirs(
        model.embedding(x), tuple(before[n][0].transpose(0, 1).contiguous() for n in model.carried)
    )
    torch.testing.assert_close(model(x), model.decoder(wanted), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.hidden, h.transpose(0, 1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(model.cell, c.transpose(0, 1), rtol=1e-12, atol=1e-14)


def test_two_stretches_are_one_long_one():
    model = network(dropout=0.0)
    x, _ = words(B, 10)
    whole = model(x)
    model.begin(B)
    parts = [model(part) for part in x.split([3, 7], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-14)


def test_no_gradient_goes_back_beyond_a_stretch():
    model = network(dropout=0.0)
    model(words(B, T)[0])
    assert not any(getattr(model, name).requires_grad for name in model.carried)


def test_another_number_of_streams_is_refused():
    with pytest.raises(ValueError, match="state is of 4 streams, and 2 came"):
        network()(words(2, T)[0])


def test_a_state_is_no_part_of_the_model():
    assert not {"hidden", "cell"} & network().state_dict().keys()


def test_a_transformer_does_not_look_ahead():
    model = network("transformer_lm").eval()
    x, other = words(B, T)
    changed = torch.cat([x[:, :4], other[:, 4:]], 1)
    assert not torch.equal(x, changed)
    one, two = model(x), model(changed)
    assert torch.equal(one[:, :4], two[:, :4])
    assert not torch.equal(one[:, 4:], two[:, 4:])


def test_attention_is_that_of_torch():
    attention = network("transformer_lm").eval().blocks[0].attention
    x = torch.randn(B, T, 8, dtype=torch.float64)
    parts = attention.qkv(x).view(B, T, 3, 2, 4).permute(2, 0, 3, 1, 4)
    fused = functional.scaled_dot_product_attention(*parts, is_causal=True)
    wanted = attention.out(fused.transpose(1, 2).reshape(B, T, 8))
    torch.testing.assert_close(attention(x), wanted, rtol=1e-12, atol=1e-14)


def test_a_transformer_has_a_place_for_each_token():
    with pytest.raises(ValueError, match="7 tokens in a row, and the network has 6 places"):
        network("transformer_lm")(words(B, 7)[0])


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("lstm_lm", {"hidden": 0}, "hidden must be a whole number"),
        ("lstm_lm", {"layers": True}, "layers must be a whole number"),
        ("lstm_lm", {"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ("lstm_lm", {"emb": 3}, "tie needs emb to be hidden"),
        ("transformer_lm", {"heads": 3}, "emb must be a multiple of heads"),
        ("gpt", {"heads": 3}, "emb must be a multiple of heads"),
        ("gpt", {"size": "huge"}, "size must be one of mini, small, medium"),
    ],
)
def test_sizes_that_do_not_exist_are_refused(name, config, error):
    with pytest.raises(SettingError, match=error):
        build_model(name, {**MODELS[name], **config}, V, (T,))


@pytest.mark.parametrize("name", MODELS)
def test_a_language_model_refuses_images(name):
    with pytest.raises(SettingError, match="takes text"):
        build_model(name, {}, 10, (1, 28, 28))


@pytest.mark.parametrize(
    ("config", "vocabulary", "count"),
    [
        ("hidden=1500, layers=2", 10_000, 51_034_000),  # DGC, ICLR 2018, Table 4: 194.68 MB
        ("hidden=650, layers=3", 28_869, 28_949_319),  # CHOCO-SGD, ICLR 2020, Table 3: 110.43 MB
    ],
)
def test_lstms_have_the_published_sizes(config, vocabulary, count):
    shapes = shapes_of("lstm_lm", config, vocabulary)
    assert sum(shape.numel() for shape in shapes.values()) == count


@pytest.mark.parametrize(
    ("config", "vocabulary", "length", "count"),
    [
        ("size=medium, bias=true", 50_304, 1024, 124_475_904),  # GPT-2: nanoGPT says 124.48 M
        ("size=small", 65, 256, 10_745_088),  # nanoGPT's of Shakespeare, 10.65 M without positions
        ("size=mini", 65, 64, 804_096),
    ],
)
def test_gpts_have_the_sizes_of_nanogpt(config, vocabulary, length, count):
    shapes = shapes_of("gpt", config, vocabulary, str(length))
    assert sum(shape.numel() for shape in shapes.values()) == count


def test_a_gpt_with_biases_is_the_transformer():
    one = network("gpt", bias=True, dropout=0.0)
    other = network("transformer_lm", dropout=0.0)
    assert [n for n, _ in one.named_parameters()] == [n for n, _ in other.named_parameters()]
    x, _ = words(B, T)
    assert torch.equal(one(x), other(x))


# engines


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("engine", ["vmap", "onepass"])
def test_every_engine_carries_states_and_gives_the_gradients_of_a_loop(name, tie, engine):
    model = network(name, tie=tie)
    x, y = words(W, B, T)
    before = states(model)
    untouched = {key: value.clone() for key, value in before.items()}
    got, wanted = (gradients(e, model, x, y, criterion, before) for e in (engine, "loop"))
    for key, value in wanted.values.items():
        torch.testing.assert_close(got.values[key], value, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(got.output, wanted.output, rtol=1e-10, atol=1e-13)
    for key, value in wanted.buffers.items():
        assert not torch.equal(value, before[key])
        torch.testing.assert_close(got.buffers[key], value, rtol=1e-10, atol=1e-13)
        assert torch.equal(before[key], untouched[key])


def test_a_transformer_carries_nothing():
    assert dict(network("transformer_lm").named_buffers()) == {}


def test_squares_of_streams_begin_with_the_state_of_each():
    model = network(dropout=0.0)
    x, y = words(1, B, T)
    before, keys = states(model, 1), RandomKey(0, torch.arange(1)).keys()
    params = dict(model.named_parameters())
    got = sample_squares(model, criterion, params, before, x, y, keys)
    total = {key: torch.zeros_like(p) for key, p in params.items()}
    for z in range(B):
        for key in model.carried:
            setattr(model, key, before[key][0, z : z + 1].clone())
        loss = criterion(model(x[0, z : z + 1]), y[0, z : z + 1]) / B
        for key, g in zip(params, torch.autograd.grad(loss, params.values()), strict=True):
            total[key] += g.square()
    for key, value in total.items():
        torch.testing.assert_close(got[key][0], value, rtol=1e-9, atol=1e-15)


# the simulator


def trained_plainly(x, y, batch, model, lr=0.5):
    """Train on stretches `x` [steps, batch, T] by torch alone; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    losses = []
    for now, target in zip(x, y, strict=True):
        loss = criterion(model(now), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.mark.parametrize("engine", ["loop", "vmap", "onepass"])
def test_one_worker_is_plain_truncated_backpropagation(engine):
    x, y = words(5, B, T)
    plain, ours = network(dropout=0.0), network(dropout=0.0)
    wanted = trained_plainly(x, y, B, plain)
    simulator = Simulator(ours, criterion, workers=1, lr=0.5, engine=engine)
    losses = torch.cat([simulator.step(*batch).losses for batch in zip(x, y, strict=True)])
    torch.testing.assert_close(losses, wanted, rtol=1e-11, atol=0)
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-14)


def test_all_workers_together_are_one_of_all_streams():
    x, y = words(5, W * B, T)
    plain, ours = network(batch=W * B, dropout=0.0), network(dropout=0.0)
    wanted = trained_plainly(x, y, W * B, plain)
    simulator = Simulator(ours, criterion, workers=W, lr=0.5)
    losses = [simulator.step(*batch).losses.mean() for batch in zip(x, y, strict=True)]
    torch.testing.assert_close(torch.stack(losses), wanted, rtol=1e-11, atol=0)
    torch.testing.assert_close(simulator.buffers["hidden"].flatten(0, 1), plain.hidden)


def test_passes_of_a_step_follow_each_other():
    model = network(dropout=0.0)
    x, y = words(2, B, T)  # two stretches of the same streams
    wanted = [criterion(model(now), then).item() for now, then in zip(x, y, strict=True)]
    simulator = Simulator(network(dropout=0.0), criterion, workers=1, accumulate=2, lr=0.1)
    record = simulator.step(x.flatten(0, 1), y.flatten(0, 1))
    assert record.loss == pytest.approx(sum(wanted) / 2, rel=1e-12)


def test_an_epoch_begins_anew():
    x, y = words(W * B, T)
    simulator = Simulator(network(dropout=0.0), criterion, workers=W, lr=1e-30)
    first, second = (simulator.step(x, y, epoch=0).loss for _ in range(2))
    assert second != first
    assert simulator.step(x, y, epoch=1).loss == first


def test_an_evaluation_neither_sees_nor_changes_the_states_of_workers():
    x, y = words(3, W * B, T)
    alone, watched = (Simulator(network(), criterion, workers=W, lr=0.1) for _ in range(2))
    for now, target in zip(x, y, strict=True):
        one = alone.step(now, target)
        model = watched.evaluation_model()
        model.begin(2)
        model(now[:2])
        two = watched.step(now, target)
        assert torch.equal(one.losses, two.losses)


# runs

TINY = {
    "model": "lstm_lm", "model_config": "hidden=6", "dataset": "text:tiny", "workers": 2,
    "batch_size": 2, "bptt": 5, "epochs": 2, "device": "cpu", "quiet": True, "lr": 0.5,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path):
    """Return settings for a run on a text of which an epoch has 12 steps."""
    (tmp_path / "tiny").write_text("the cat sat on the mat and\nthe dog sat on the cat\n" * 19)
    return {**TINY, "data_dir": tmp_path, "runs_dir": tmp_path / "runs", "name": "run"}


def same(run, other):
    for table in ("epochs", "steps"):
        one, two = (untimed(getattr(r, table)) for r in (run, other))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    one, two = (torch.load(r.folder / "last.pt", weights_only=True) for r in (run, other))
    for part in ("parameters", "buffers"):
        for name, value in one["simulator"][part].items():
            assert torch.equal(value, two["simulator"][part][name])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 12, 15])
def test_a_run_stopped_and_resumed_is_the_run_that_never_stopped(tiny, stop, monkeypatch):
    recipe = {**tiny, "compressor": "topk:0.1", "vary_bptt": True, "checkpoint_every": 1}
    whole = simsgd.train(**{**recipe, "name": "whole"})
    assert len(whole.steps) == 24
    step = Simulator.step

    def interrupted(self, *args):
        if self.steps == stop:
            raise KeyboardInterrupt
        return step(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simsgd.train(**recipe)
    same(simsgd.train(resume=tiny["runs_dir"] / "run"), whole)


@pytest.mark.slow
def test_a_run_reports_perplexity(tiny):
    run = simsgd.train(**tiny)
    last = run.epochs.iloc[-1]
    assert last.val_perplexity == pytest.approx(math.exp(last.val_loss))
    assert last.train_perplexity == pytest.approx(math.exp(last.train_loss))
    assert f"validation perplexity      {last.val_perplexity:.2f} after 2 epochs" in run.summary()
    assert f"val perplexity {last.val_perplexity:.2f}, sent" in run.log
    assert "words of text" in run.log
    assert "val_perplexity" not in (run.folder / "epochs.csv").read_text()
    assert "val_bits" not in run.epochs


@pytest.mark.slow
def test_a_run_on_characters_reports_bits(tiny):
    run = simsgd.train(**tiny, tokens="char")
    last = run.last
    assert last.val_bits == pytest.approx(last.val_loss / math.log(2))
    assert f"({last.val_bits:.3f} bits per char)" in run.summary()


@pytest.mark.slow
def test_the_best_epoch_is_that_of_the_least_loss(tiny):
    run = simsgd.train(**{**tiny, "epochs": 4, "lr": 4.0})
    assert run.best.epoch == run.epochs["val_loss"].idxmin()
    best = torch.load(run.folder / "best.pt", weights_only=True)
    assert best["epoch"] == run.best.epoch + 1


@pytest.mark.slow
def test_training_learns_a_text_that_repeats(tiny):
    settings = {**tiny, "model_config": "hidden=16", "epochs": 8, "lr": 1.0}
    by_frequency = Experiment.of(Config.of(settings)).dataset.unigram_perplexity
    assert simsgd.train(**settings).last.val_perplexity < by_frequency / 2


def test_errors_are_those_of_tokens(tiny):
    experiment = Experiment.of(Config.of(tiny))
    model = experiment.model.eval()
    text, columns = experiment.dataset.val, 10
    whole = (len(text) - 1) // columns * columns
    x, y = (text[at : at + whole].view(columns, -1) for at in (0, 1))
    model.begin(columns)
    output = model(x).detach()  # all in one stretch
    measured = evaluate(experiment, model)
    assert measured["loss"] == pytest.approx(criterion(output, y).item(), rel=1e-5)
    assert measured["error1"] == pytest.approx(100 * (output.argmax(2) != y).double().mean().item())


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_on_validation_and_on_test(tiny):
    run = simsgd.train(**tiny, tokens="byte")
    printed = {}
    for part in ("val", "test"):
        words = ["evaluate", str(run.folder), "--part", part]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        printed[part] = dict(line.split("  ", 1) for line in done.output.splitlines())
    last = run.last
    assert printed["val"]["validation loss"].strip() == f"{last.val_loss:.4f}"
    wanted = f"{last.val_perplexity:.2f} ({last.val_bits:.3f} bits per byte)"
    assert printed["val"]["validation perplexity"].strip() == wanted
    assert printed["test"]["test loss"] != printed["val"]["validation loss"]


@pytest.mark.slow
def test_images_have_no_test_part(tmp_path):
    run = simsgd.train(model="mlp", dataset="digits", epochs=1, runs_dir=tmp_path, quiet=True)
    assert "val_perplexity" not in run.epochs
    done = CliRunner().invoke(main, ["evaluate", str(run.folder), "--part", "test"])
    assert done.exit_code == 2
    with pytest.raises(SettingError, match="has no column val_perplexity"):
        plot_results([run], y="val_perplexity")


@pytest.mark.slow
@pytest.mark.parametrize("column", ["val_perplexity", "train_perplexity", "val_bits"])
def test_perplexity_is_drawn(tiny, column, tmp_path):
    run = simsgd.train(**tiny, tokens="char")
    for x in ("epoch", "bytes"):
        figure = plot_results([run], x=x, y=column, output=tmp_path / "figure.png")
        drawn = figure.axes[0].lines[0].get_ydata()
        assert list(drawn) == run.epochs[column].tolist()


def test_a_loss_beyond_all_bounds_is_an_infinite_perplexity():
    assert perplexity(1e4) == math.inf
    assert bits(math.log(8)) == pytest.approx(3)


@pytest.mark.parametrize(
    "settings", [{"tokens": "word"}, {"bptt": 35}, {"vary_bptt": True}, {"min_count": 1}]
)
def test_settings_of_texts_are_refused_for_images(settings):
    with pytest.raises(SettingError, match="has no effect with digits, which is not a text"):
        Experiment.of(Config(dataset="digits", model="mlp", **settings))


def test_the_config_has_what_was_left_out(tiny):
    del tiny["bptt"], tiny["model"]
    config = Experiment.of(Config.of({**tiny, "batch_size": 1})).config
    assert (config.model, config.tokens, config.bptt) == ("lstm_lm", "word", 35)


@pytest.mark.slow
def test_a_transformer_reads_stretches_of_all_lengths(tiny):
    settings = {**tiny, "model": "transformer_lm", "model_config": "emb=8, heads=2"}
    assert len(simsgd.train(**settings, vary_bptt=True).epochs) == 2


def test_every_model_file_of_language_gives_a_loss_a_token():
    for name in MODELS:
        output, (_, y) = torch.randn(B, T, V), words(B, T)
        each = [-output[i, t].log_softmax(0)[y[i, t]] for i in range(B) for t in range(T)]
        assert float(load("models", name).criterion(output, y)) == pytest.approx(
            float(torch.stack(each).mean()), rel=1e-5
        )


# processes


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("settings", "plain"),
    [({}, True), ({"compressor": "topk:0.1", "accumulate": 2, "batch_size": 1}, False)],
)
def test_real_processes_carry_the_same_states_over_epochs(two_ranks, tiny, settings, plain):
    recipe = {**tiny, "dtype": "float64", **settings}
    rows, by_torch = two_ranks(verified, 14, recipe)
    assert by_torch == plain
    assert max(row["parameter_difference"] for row in rows) < 1e-12
    assert all(row["bytes_agree"] for row in rows)


@pytest.mark.distributed
def test_a_run_spread_over_processes_is_that_of_one(two_ranks, tiny):
    recipe = {**tiny, "dtype": "float64", "workers": 4, "batch_size": 1}
    alone = simsgd.train(**{**recipe, "name": "alone"})
    shared = simsgd.Run(two_ranks(trained, {**recipe, "name": "shared"}))
    for table in ("epochs", "steps"):
        one, other = (untimed(getattr(r, table)) for r in (alone, shared))
        pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=1e-9)
