# SPDX-License-Identifier: Apache-2.0
"""Several values that are one text: the parts between delimiters, or the words."""

import re
from collections.abc import Iterable

#: The delimiter that stands for the words of a text.
WORDS = r"\w+"


def split_text(text: str, delimiter: str) -> list[str]:
    r"""Return the parts of a text between delimiters; of ``r"\w+"``, its words.

    Words are in lower case, without what stands between them.

    Examples
    --------
    >>> from skest.core.words import split_text
    >>> split_text("a||b", "|"), split_text("Well, it's OK!", r"\w+")
    (['a', '', 'b'], ['well', 'it', 's', 'ok'])
    """
    if delimiter == WORDS:
        return re.findall(WORDS, text.lower())
    return text.split(delimiter)


def joined_text(parts: Iterable[str], delimiter: str) -> str:
    """Return a text that has these parts."""
    return (" " if delimiter == WORDS else delimiter).join(parts)
