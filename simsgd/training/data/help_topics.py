"""Reads the English of Python's own help topics, which every CPython has on board.

What stands there differs a little from one version of Python to the next, and so does the text.
"""

import functools
import re

_BLOCK = 10  # paragraphs that stay together; of every 20 blocks one is for validation, one to test
_VAL, _TEST = 9, 19


@functools.cache
def help_topics(as_words: bool) -> tuple[str, str, str]:
    """Return the texts for training, validation and test, 90, 5 and 5 %.

    A paragraph that several topics share is there once. With `as_words` it is one line in lower
    case, with spaces between words and punctuation.
    """
    from pydoc_data.topics import topics

    told = [p for name in sorted(topics) for p in re.split(r"\n\s*\n", topics[name])]
    paragraphs = list(dict.fromkeys(_plain(p) for p in told))
    if as_words:
        paragraphs = list(dict.fromkeys(map(_words, paragraphs)))
    parts: dict[int, list[str]] = {_VAL: [], _TEST: []}
    train: list[str] = []
    for number, paragraph in enumerate(filter(None, paragraphs)):
        parts.get(number // _BLOCK % 20, train).append(paragraph)
    between = "\n" if as_words else "\n\n"
    train_text, val, test = (
        between.join(part) + "\n" for part in (train, parts[_VAL], parts[_TEST])
    )
    return train_text, val, test


def _plain(paragraph: str) -> str:
    """Return a paragraph without the lines that underline headings and rule tables."""
    lines = (line.rstrip() for line in paragraph.splitlines())
    return "\n".join(line for line in lines if not re.fullmatch(r"[-+=*~^|\s]{3,}", line))


def _words(paragraph: str) -> str:
    """Return the words of a paragraph and its signs, such as `.` and `==`, with spaces between."""
    return " ".join(found[0] for found in re.finditer(r"\w+|([^\w\s])\1*", paragraph.lower()))
