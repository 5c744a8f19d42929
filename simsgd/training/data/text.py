"""Texts by name, as streams of tokens.

Letters: N tokens of a split, V entries of the vocabulary.

A text is read as plain characters. Nothing in it is executed, and nothing is written.
"""

from dataclasses import dataclass, replace
from math import exp
from pathlib import Path

import torch
from torch import Tensor

from ...settings import SettingError, one_line, require
from ...units import home_path, in_units
from .help_topics import help_topics
from .vocabulary import UNKNOWN, Vocabulary

_LARGEST = 1 << 30  # bytes of a file
_MOST_TOKENS = 500_000  # of a vocabulary; WikiText-103 has 267,735 words
_RARE = 2  # times a word of raw text must occur to be known, unless set


@dataclass(frozen=True)
class _Files:
    """A published set: its files under the data folder, and where they come from."""

    names: tuple[str, str, str]  # train, validation, test
    source: str


_PUBLISHED = {
    "ptb": _Files(
        ("ptb/ptb.train.txt", "ptb/ptb.valid.txt", "ptb/ptb.test.txt"),
        "simple-examples/data of www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
    ),
    "wikitext2": _Files(
        (
            "wikitext-2/wiki.train.tokens",
            "wikitext-2/wiki.valid.tokens",
            "wikitext-2/wiki.test.tokens",
        ),
        'wikitext-2-v1.zip of Merity et al., "Pointer Sentinel Mixture Models", 2016',
    ),
}
ABOUT = {
    "pydoc": "the help topics of Python itself, 71,000 words; embedded",
    "ptb": "Penn Treebank, 930,000 words of newspaper; from --data-dir",
    "wikitext2": "WikiText-2, 2,100,000 words of Wikipedia; from --data-dir",
    "text:PATH": "text in PATH/train.txt, valid.txt and test.txt, or in one file, split 90/5/5",
}


@dataclass(frozen=True)
class Text:
    """A text in three parts, each a stream of tokens, and what the tokens are."""

    name: str
    train: Tensor  # int64 [N], as are the others
    val: Tensor
    test: Tensor
    vocabulary: Vocabulary  # of the training text
    min_count: int = 1  # times that a token must occur in the training text to be known

    @property
    def num_classes(self) -> int:
        """How many tokens there are to choose from, V."""
        return len(self.vocabulary)

    def to(self, device: torch.device | str) -> "Text":
        """Return the text on a device."""
        parts = {part: getattr(self, part).to(device) for part in ("train", "val", "test")}
        return replace(self, **parts)

    @property
    def unigram_perplexity(self) -> float:
        """Perplexity on the validation text of guessing by frequency in the training text.

        A token that never occurred there counts as if it had once, and so one more for each.
        """
        counts = self.train.bincount(minlength=self.num_classes).double() + 1
        surprise = (counts.sum() / counts).log()  # [V], nats
        return exp(float(surprise[self.val].mean()))


def is_text(name: str) -> bool:
    """Return whether a name is one of a text."""
    return name.startswith("text:") or (name in ABOUT and ":" not in name)


def load_text(name: str, data_dir: Path, tokens: str, min_count: int | None = None) -> Text:
    """Return a text; `tokens` is word, char or byte.

    `min_count` is how often a word or character must occur in the training text to be known; by
    itself 2 for words of raw text, 1 where rare words are `<unk>` already. Raises `SettingError`
    for files that are missing, empty or no UTF-8: it says which, and where they must lie.
    """
    kind, _, path = name.partition(":")
    assert is_text(name)
    if min_count is None:
        min_count = _RARE if tokens == "word" and kind not in _PUBLISHED else 1
    if kind == "pydoc":
        parts = _embedded(tokens)
    elif kind == "text":
        parts = _own(name, path, data_dir, tokens)
    else:
        parts = _published(name, data_dir, tokens)
    for part, text in zip(("training", "validation", "test"), parts, strict=True):
        require(bool(text.strip()), "dataset", name, f"has no {part} text")
    vocabulary = Vocabulary.of(parts[0], tokens, min_count)
    rule = f"leaves no {tokens} of {name} known, only {UNKNOWN}"
    require({*vocabulary.entries} != {UNKNOWN}, "min_count", min_count, rule, "lower it")
    rule = f"has {len(vocabulary):,} different tokens"
    fix = f"at most {_MOST_TOKENS:,} are taken: raise --min-count, or use --tokens char"
    require(len(vocabulary) <= _MOST_TOKENS, "dataset", name, rule, fix)
    train, val, test = map(vocabulary.encode, parts)
    return Text(name, train, val, test, vocabulary, min_count)


def _embedded(tokens: str) -> tuple[str, str, str]:
    parts = help_topics(as_words=tokens == "word")
    if tokens != "byte":
        return parts
    train, val, test = (part.encode().decode("latin-1") for part in parts)
    return train, val, test


def _published(name: str, data_dir: Path, tokens: str) -> tuple[str, str, str]:
    wanted = _PUBLISHED[name]
    paths = [data_dir / file for file in wanted.names]
    missing = [str(path) for path in paths if not path.is_file()]
    fix = f"put them there from {wanted.source}; --download cannot"
    require(not missing, "dataset", name, f"lacks {', '.join(missing)}", fix)
    train, val, test = (_read(name, path, tokens) for path in paths)
    return train, val, test


def _own(name: str, path: str, data_dir: Path, tokens: str) -> tuple[str, str, str]:
    require(path != "", "dataset", name, "names no file or folder", "write text:PATH")
    given = home_path(path)
    root = given if given.exists() else data_dir / path
    if root.is_file():
        return _divided(_read(name, root, tokens))
    layout = "expected is a file, or a folder with train.txt, valid.txt and test.txt"
    where = f"{root}" if given.is_absolute() else f"{root}, nor {given} here"
    require(root.is_dir(), "dataset", name, f"finds no {where}", layout)
    files = [root / f"{part}.txt" for part in ("train", "valid", "test")]
    missing = [file.name for file in files if not file.is_file()]
    require(not missing, "dataset", name, f"lacks {', '.join(missing)} in {root}", layout)
    train, val, test = (_read(name, file, tokens) for file in files)
    return train, val, test


def _read(name: str, path: Path, tokens: str) -> str:
    """Return a file's characters; for bytes, one character for each."""
    try:
        size = path.stat().st_size
        rule = f"has a file of {in_units(size)}, {path}"
        fix = f"at most {in_units(_LARGEST)} are read: take a part of it"
        require(size <= _LARGEST, "dataset", name, rule, fix)
        return path.read_bytes().decode("latin-1" if tokens == "byte" else "utf-8-sig")
    except UnicodeDecodeError as wrong:
        rule = f"has a file that is not UTF-8, {path} ({one_line(wrong)})"
        raise SettingError("dataset", name, rule, "convert it, or use --tokens byte") from wrong
    except OSError as wrong:
        raise SettingError("dataset", name, f"cannot read {path} ({one_line(wrong)})") from wrong


def _divided(text: str) -> tuple[str, str, str]:
    """Return 90, 5 and 5 % of a text, cut after a line where one ends nearby."""
    first, second = (_cut(text, len(text) * percent // 100) for percent in (90, 95))
    return text[:first], text[first:second], text[second:]


def _cut(text: str, at: int) -> int:
    end = text.find("\n", at, at + len(text) // 100)
    return at if end < 0 else end + 1
