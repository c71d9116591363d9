"""Makes received text safe to show: names and reasons must not control the reader's terminal."""

import codecs
import re

# Colours and weights (SGR). Other sequences could move the cursor, overwrite text, set the title, or send input.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
# The beginning of a sequence that continues in the next piece.
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
# Lines, tabs, and what progress bars use to write a line again.
_LOG = "\n\t\r\b"


def printable(text: str, kept: str = "") -> str:
    """Returns a text with every invisible character escaped.

    These are control characters (line ends included), invisible ones, and those that reverse the writing direction.

    Args:
        text: From any source.
        kept: Characters not to escape.
    """
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """Does what `printable` does, and keeps line ends and tabs."""
    return printable(text, "\n\t")


class LogFilter:
    """Makes a log safe for a terminal, piece by piece: colours are kept, other sequences are shown as text."""

    def __init__(self, *, colours: bool = True) -> None:
        """Makes a filter for a new log.

        Args:
            colours: Whether sequences that set colours and weights are kept; otherwise they are removed.
        """
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, piece: bytes, last: bool = False) -> str:
        """Returns the next text to show.

        Args:
            piece: The next bytes.
            last: Whether these are the last bytes.
        """
        text = self._rest + self._decoder.decode(piece, last)
        unfinished = None if last else _UNFINISHED.search(text)
        self._rest = text[unfinished.start() :] if unfinished else ""
        shown = text[: unfinished.start()] if unfinished else text
        return "".join(
            part * self._colours if number % 2 else printable(part, _LOG)
            for number, part in enumerate(_COLOUR.split(shown))
        )
