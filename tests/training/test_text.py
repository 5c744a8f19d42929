"""Texts, their tokens, and the streams that workers read of them."""

import math
from collections import Counter

import pytest
import torch

from simsgd.settings import SettingError
from simsgd.training import data
from simsgd.training.data.streams import Streams, in_order
from simsgd.training.data.text import load_text
from simsgd.training.data.vocabulary import Vocabulary


def read(folder, name, tokens="word", **settings):
    return load_text(name, folder, tokens, **settings)


def spelled(text, part):
    return [text.vocabulary.entries[number] for number in getattr(text, part).tolist()]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.txt").write_text("to be or not\n\nto be\n")
    (tmp_path / "mine" / "valid.txt").write_text("to see")
    (tmp_path / "mine" / "test.txt").write_text("not  to\tbe\r\n")
    return tmp_path


# tokens


def test_words_stand_between_spaces_and_each_line_has_an_end(folder):
    text = read(folder, "text:mine", min_count=1)
    line = ["to", "be", "or", "not", "<eos>"]
    assert spelled(text, "train") == [*line, "<eos>", "to", "be", "<eos>"]
    assert spelled(text, "test") == ["not", "to", "be", "<eos>"]


def test_a_word_that_training_does_not_know_is_unknown(folder):
    text = read(folder, "text:mine", min_count=1)
    assert "see" not in text.vocabulary.entries
    assert spelled(text, "val") == ["to", "<unk>", "<eos>"]


def test_rare_words_of_raw_text_are_unknown(folder):
    assert set(read(folder, "text:mine").vocabulary.entries) == {"to", "be", "<eos>", "<unk>"}


def test_the_most_frequent_come_first_and_equals_by_the_alphabet():
    entries = Vocabulary.of("b a\nc b\n", "word").entries
    assert entries == ("<eos>", "b", "a", "c", "<unk>")


def test_a_text_that_has_its_own_unknown_words_gets_no_second_entry():
    assert Vocabulary.of("<unk> a\n", "word").entries.count("<unk>") == 1


def test_characters_are_distinguished_with_spaces_and_ends_of_lines(folder):
    text = read(folder, "text:mine", "char")
    assert "".join(spelled(text, "train")) == "to be or not\n\nto be\n"
    assert spelled(text, "val")[-3:] == ["<unk>", "e", "e"]  # no s in training


def test_bytes_are_numbered_by_their_value(folder):
    (folder / "mine" / "train.txt").write_bytes(bytes(range(256)))
    text = read(folder, "text:mine", "byte")
    assert text.train.tolist() == list(range(256))
    assert text.num_classes == 256


def test_what_looks_like_code_is_only_text(tmp_path):
    evil = "__import__('os').mkdir('gone') \x00\x1b[2J {0.__class__} %s $(touch gone) `id`\n"
    (tmp_path / "evil").write_text(evil * 30)
    text = read(tmp_path, "text:evil")
    assert {*evil.split()} <= {*text.vocabulary.entries}
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


# files


def test_one_file_is_divided_in_90_5_and_5_percent_at_ends_of_lines(tmp_path):
    lines = [f"line {number}\n" for number in range(1000)]
    (tmp_path / "one.txt").write_text("".join(lines))
    text = read(tmp_path, "text:one.txt", "char")
    parts = ["".join(spelled(text, part)) for part in ("train", "val", "test")]
    assert "".join(parts) == "".join(lines)
    assert all(part.endswith("\n") for part in parts)
    sizes = [len(part) / len("".join(lines)) for part in parts]
    assert sizes == pytest.approx([0.9, 0.05, 0.05], abs=0.002)


def test_a_file_of_one_line_is_divided_too(tmp_path):
    (tmp_path / "one.txt").write_text("word " * 1000 + "\n")
    text = read(tmp_path, "text:one.txt")
    assert [len(text.train), len(text.val), len(text.test)] == [901, 51, 51]


def test_penn_treebank_and_wikitext_are_read_as_they_are_handed_out(tmp_path):
    for name, file in (("ptb", "ptb/ptb.{}.txt"), ("wikitext2", "wikitext-2/wiki.{}.tokens")):
        for part in ("train", "valid", "test"):
            path = tmp_path / file.format(part)
            path.parent.mkdir(exist_ok=True)
            path.write_text(f" \n = {part} = \n \n no it <unk> n't N \n")
        text = read(tmp_path, name)
        assert spelled(text, "train")[:5] == ["<eos>", "=", "train", "=", "<eos>"]
        assert text.num_classes == len(Counter(spelled(text, "train")))


def test_missing_files_are_named_with_the_place_they_come_from(tmp_path):
    with pytest.raises(SettingError, match=r"lacks .*ptb.train.txt, .*simple-examples"):
        read(tmp_path, "ptb")


def test_the_error_of_a_folder_that_lacks_a_file_names_it(folder):
    (folder / "mine" / "valid.txt").unlink()
    with pytest.raises(SettingError, match=r"lacks valid\.txt in .*mine.*expected is"):
        read(folder, "text:mine")


@pytest.mark.parametrize(("name", "error"), [("text:", "names no file"), ("text:no", "finds no")])
def test_a_text_that_is_nowhere_is_refused(folder, name, error):
    with pytest.raises(SettingError, match=error):
        read(folder, name)


def test_an_empty_part_is_refused(folder):
    (folder / "mine" / "test.txt").write_text(" \n")
    with pytest.raises(SettingError, match="has no test text"):
        read(folder, "text:mine")


def test_a_file_in_another_encoding_is_named(folder):
    (folder / "mine" / "valid.txt").write_bytes("käse".encode("latin-1"))
    with pytest.raises(SettingError, match=r"not UTF-8, .*valid\.txt.*use --tokens byte"):
        read(folder, "text:mine")
    assert read(folder, "text:mine", "byte").val.tolist() == [107, 228, 115, 101]


def test_names_of_texts_are_recognized():
    assert all(map(data.is_text, ("pydoc", "ptb", "wikitext2", "text:x")))
    assert not any(map(data.is_text, ("mnist5k", "text", "ptb:x", "pydocs")))
    assert {"pydoc", "ptb", "wikitext2", "text:PATH"} <= {*data.names()}


# the help topics


@pytest.fixture(scope="module")
def pydoc():
    return load_text("pydoc", None, "word")


def test_help_topics_are_divided_about_90_5_and_5(pydoc):
    sizes = torch.tensor([len(pydoc.train), len(pydoc.val), len(pydoc.test)]) / 1.0
    assert sizes.sum() > 50_000
    assert ((sizes / sizes.sum()) - torch.tensor([0.9, 0.05, 0.05])).abs().max() < 0.04


def test_no_paragraph_is_in_two_parts(pydoc):
    paragraphs = [
        set(" ".join(spelled(pydoc, part)).split("<eos>")) for part in ("train", "val", "test")
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        shared = paragraphs[one] & paragraphs[other]
        assert not [p for p in shared if "<unk>" not in p and p.strip()]


def test_the_unigram_perplexity_is_that_of_counting(folder):
    text = read(folder, "text:mine", min_count=1)
    counts = Counter(spelled(text, "train"))
    total = sum(counts.values()) + text.num_classes
    surprise = [-math.log((counts[word] + 1) / total) for word in spelled(text, "val")]
    assert text.unigram_perplexity == pytest.approx(math.exp(sum(surprise) / len(surprise)))


# streams


def streams(n=1000, **settings):
    return Streams(torch.arange(n), **{"workers": 3, "batch": 2, "bptt": 7, **settings})


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("vary", [False, True])
def test_each_worker_reads_its_own_streams_in_order(passes, vary):
    reader = streams(passes=passes, vary=vary)
    length = 999 // 6
    read = [[] for _ in range(6)]
    for x, y in reader.epoch(0):
        assert torch.equal(y, x + 1)
        shared = x.unflatten(0, (3, passes, 2))  # as a simulator divides them
        for w, m, c in [(w, m, c) for m in range(passes) for w in range(3) for c in range(2)]:
            read[2 * w + c] += shared[w, m, c].tolist()
    used = reader.batches * passes * 7
    assert length - used < passes * 7
    assert read == [list(range(s * length, s * length + used)) for s in range(6)]


def test_an_epoch_gone_on_with_is_the_rest_of_it():
    reader = streams(vary=True)
    whole = list(reader.epoch(2))
    assert all(
        torch.equal(a, b) for (a, _), (b, _) in zip(whole[3:], reader.epoch(2, 3), strict=True)
    )


def test_lengths_that_vary_are_drawn_by_seed_and_epoch():
    def lengths(seed, epoch):
        return [x.shape[1] for x, _ in streams(4000, bptt=20, vary=True, seed=seed).epoch(epoch)]

    first = lengths(0, 0)
    assert len(set(first)) > 3
    assert (min(first) >= 10, max(first) <= 30, sum(first) == 20 * len(first)) == (True,) * 3
    assert first == lengths(0, 0)
    assert first != lengths(0, 1)
    assert first != lengths(1, 0)


def test_no_stretch_is_longer_than_asked_for():
    reader = streams(20_000, bptt=9, vary=True)
    longest = max(x.shape[1] for epoch in range(20) for x, _ in reader.epoch(epoch))
    assert longest == reader.longest == 13


def test_the_error_of_a_text_too_short_for_one_step_has_the_tokens_needed():
    assert streams(2 * 3 * 7 + 1).batches == 1
    with pytest.raises(SettingError, match="needs 43 tokens, and the training text has 42"):
        streams(2 * 3 * 7)


def test_a_length_that_cannot_vary_is_refused():
    with pytest.raises(SettingError, match="at least 4, not 3"):
        streams(bptt=3, vary=True)


@pytest.mark.parametrize("n", [2, 9, 11, 12, 100, 207])
def test_an_evaluation_reads_each_token_once_and_in_order(n):
    columns, batches = in_order(torch.arange(n), 4)
    x, y = (torch.cat([batch[part] for batch in batches], 1) for part in (0, 1))
    assert len(x) == columns <= 10
    assert torch.equal(x.flatten(), torch.arange(x.numel()))
    assert torch.equal(y, x + 1)
    assert n - 1 - x.numel() < 10
