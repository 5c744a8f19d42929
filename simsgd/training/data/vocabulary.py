"""Numbers the tokens of a text: words, characters or bytes.

Letters: N tokens of a text, V entries of the vocabulary.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a model knows, by number."""

    kind: str  # word, char or byte
    entries: tuple[str, ...]  # all V, the place is the number

    @classmethod
    def of(cls, text: str, kind: str, min_count: int = 1) -> "Vocabulary":
        r"""Return the tokens of a training text that occur `min_count` times, most frequent first.

        Words and characters have an entry `<unk>` for all others; bytes are all 256.

        >>> Vocabulary.of("to be\nor not to be\n", "word").entries
        ('<eos>', 'be', 'to', 'not', 'or', '<unk>')
        """
        if kind == "byte":
            return cls(kind, tuple(map(chr, range(256))))
        counts = Counter(_tokens(text, kind))
        common = (token for token, times in counts.items() if times >= min_count)
        ranked = sorted(common, key=lambda token: (-counts[token], token))
        return cls(kind, (*ranked, *({UNKNOWN} - {*ranked})))

    @cached_property
    def digest(self) -> str:
        """What differs where another token, or another order, was found: 16 hexadecimal digits."""
        return hashlib.blake2b("\0".join(self.entries).encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> Tensor:
        """Return the numbers of a text's tokens, int64 [N]."""
        numbers = self._numbers
        other = numbers.get(UNKNOWN, -1)
        return torch.tensor([numbers.get(token, other) for token in _tokens(text, self.kind)])

    def decode(self, numbers: Iterable[int]) -> str:
        r"""Return the text of numbered tokens: the reverse of `encode`, with single spaces.

        Bytes that are no UTF-8 become the replacement character.

        >>> words = Vocabulary.of("to be\nor not to be\n", "word")
        >>> words.decode([2, 1, 0, 4])
        'to be\nor'
        """
        tokens = [self.entries[number] for number in numbers]
        if self.kind == "byte":
            return "".join(tokens).encode("latin-1").decode("utf-8", "replace")
        if self.kind == "char":
            return "".join(tokens)
        return re.sub(f" ?{END} ?", "\n", " ".join(tokens))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.entries)}


def _tokens(text: str, kind: str) -> Iterator[str]:
    """Return the tokens of a text; one of bytes has a character for each byte."""
    if kind != "word":
        yield from text
        return
    for line in text.removesuffix("\n").split("\n") if text else ():
        yield from line.split()
        yield END
