"""Reads the values of a setting from the command line of a sweep.

A comma begins a new value unless what follows it is an argument, `name=value`, or it is in
brackets: `none,qsgd:15,bucket=512` is the two values `none` and `qsgd:15,bucket=512`. So is
`features.*=topk:0.01,head.*=none` one value; another one is given by the option once more.
"""

import re


def values_of(text: str) -> list[str]:
    """Return the values in a text from the command line.

    >>> values_of("4,16"), values_of("topk:0.01,qsgd:15,bucket=512,none")
    (['4', '16'], ['topk:0.01', 'qsgd:15,bucket=512', 'none'])
    >>> values_of("0.*=topk:0.01,2.weight=none,none")
    ['0.*=topk:0.01,2.weight=none', 'none']
    >>> values_of("depth=8,hidden=(64, 32)")
    ['depth=8,hidden=(64, 32)']
    """
    parts, depth = [""], 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        argument = re.match(r"\s*[^\s,:=]+\s*=", text[place + 1 :])
        if letter == "," and depth <= 0 and not argument:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
