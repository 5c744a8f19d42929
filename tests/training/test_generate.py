"""Texts that language models write."""

import pytest
import torch
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.settings import SettingError
from simsgd.training.data.vocabulary import Vocabulary
from simsgd.training.evaluate import restored

SMALL = {
    "lstm_lm": "hidden=6",
    "transformer_lm": "emb=8, heads=2",
    "gpt": "emb=8, heads=2, layers=1",
}
TEXT = "the cat sat on the mat and\nthe dog sat on the cat\n" * 19


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of each model on characters, and one on words."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "tiny").write_text(TEXT)
    usual = {"dataset": "text:tiny", "data_dir": folder, "runs_dir": folder, "workers": 2,
             "batch_size": 2, "bptt": 8, "epochs": 1, "device": "cpu", "quiet": True}  # fmt: skip
    for model, config in SMALL.items():
        own = {**usual, "model": model, "model_config": config}
        simsgd.train(**own, tokens="characters", name=model)
    for model, tokens in (("gpt", "byte"), ("gpt", "word"), ("lstm_lm", "word")):
        own = {**usual, "model": model, "model_config": SMALL[model]}
        simsgd.train(**own, tokens=tokens, name=f"{model}-{tokens}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", SMALL)
def test_the_most_likely_text_is_that_of_a_plain_loop(runs, model):
    experiment = restored(runs / model)
    entries, network = experiment.dataset.vocabulary.entries, experiment.model.eval()
    places = {entry: number for number, entry in enumerate(entries)}
    text = "the "
    for _ in range(12):
        if hasattr(network, "begin"):
            network.begin(1)  # read it all again
        seen = text if hasattr(network, "begin") else text[-8:]
        with torch.no_grad():
            scores = network(torch.tensor([[places[letter] for letter in seen]]))[0, -1]
        scores[places["<unk>"]] = -torch.inf
        text += entries[int(scores.argmax())]
    assert simsgd.generate(runs / model, prompt="the ", length=12, temperature=0) == text
    assert simsgd.generate(runs / model, prompt="the ", length=12, top_k=1, seed=3) == text


def test_a_text_whose_words_changed_is_refused(tmp_path):
    (tmp_path / "tiny").write_text(TEXT)
    run = simsgd.train(
        model="lstm_lm", model_config="hidden=4", dataset="text:tiny", data_dir=tmp_path, workers=2,
        batch_size=2, bptt=8, steps=2, quiet=True, runs_dir=tmp_path, name="a",
    )  # fmt: skip
    (tmp_path / "tiny").write_text(TEXT.replace("dog", "wolf"))
    what = "was trained on other words"
    with pytest.raises(SettingError, match=f"checkpoint {what}"):
        simsgd.generate(run.folder, prompt="the wolf")
    with pytest.raises(SettingError, match=f"checkpoint {what}"):
        simsgd.evaluate(run.folder)
    with pytest.raises(SettingError, match=f"resume {what}"):
        simsgd.train(resume=run.folder, steps=4, quiet=True)
    (tmp_path / "tiny").write_text(TEXT)
    assert simsgd.train(resume=run.folder, steps=4, quiet=True).steps["step"].iloc[-1] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "gpt-byte", "lstm_lm-word"])
def test_a_text_is_drawn_by_its_seed(runs, name):
    texts = [simsgd.generate(runs / name, length=40, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("\n")


def test_draws_follow_the_probabilities_at_a_temperature():
    from simsgd.training.generate import _drawn

    class Known:
        vocabulary = Vocabulary("char", ("a", "b", "<unk>"))

    scores, generator = torch.tensor([0.3, -0.2, 5.0]).double(), torch.Generator().manual_seed(0)
    drawn = [_drawn(scores, Known(), 0.5, None, generator) for _ in range(4000)]
    wanted = float((scores[:2] / 0.5).softmax(0)[0])
    assert set(drawn) == {0, 1}
    assert drawn.count(0) / 4000 == pytest.approx(wanted, abs=0.03)  # four standard deviations
    assert _drawn(scores, Known(), 1e-320, None, generator) == 0  # where a score overflows


def test_words_are_written_with_spaces_and_lines(runs):
    text = simsgd.generate(runs / "gpt-word", prompt="the cat", length=3, temperature=0)
    assert text.startswith("the cat ")
    assert len(text.replace("\n", " . ").split()) == 5


def test_the_command_prints_the_text(runs):
    wanted = simsgd.generate(runs / "gpt", prompt="cat", length=9)
    words = ["generate", str(runs / "gpt"), "--prompt", "cat", "--length", "9"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (0, wanted + "\n")


def test_a_prompt_that_the_text_cannot_hold_is_refused(runs):
    with pytest.raises(SettingError, match="has characters that the training text lacks: Z"):
        simsgd.generate(runs / "gpt", prompt="Zoo")
    with pytest.raises(SettingError, match="must not be empty"):
        simsgd.generate(runs / "gpt", prompt="")
    with pytest.raises(SettingError, match=r"^prompt must not be empty"):
        simsgd.generate(runs / "gpt-word", prompt=" \t")


@pytest.mark.slow
def test_a_run_on_images_writes_nothing(tmp_path):
    small = {"model": "mlp", "model_config": "hidden=4", "dataset": "digits", "workers": 2}
    simsgd.train(**small, epochs=1, quiet=True, runs_dir=tmp_path, name="one")
    with pytest.raises(SettingError, match="was trained on digits, which is not a text"):
        simsgd.generate(tmp_path / "one")
