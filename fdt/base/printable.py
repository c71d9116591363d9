"""Text from elsewhere, as it may be shown: names and reasons of others must not steer the terminal of whoever reads them."""

import codecs
import re

# Colours and weights of what is printed (SGR); all other sequences could move, overwrite, retitle, or answer by themselves.
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
# What a sequence that goes on in the next piece looks like so far.
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
# Lines, tabs, and what progress bars use to write a line again.
_LOG = "\n\t\r\b"


def printable(text: str, kept: str = "") -> str:
    """Returns a text with every character escaped that is no visible one.

    That are control characters, line ends among them, invisible ones, and those that turn the direction of writing round.

    Args:
        text: From anywhere.
        kept: Characters to leave as they are.
    """
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """Returns a text of several lines as `printable` does, its lines and tabs kept."""
    return printable(text, "\n\t")


class LogFilter:
    """Makes a log fit for a terminal, piece by piece: its colours stay, other sequences are shown instead of obeyed."""

    def __init__(self, *, colours: bool = True) -> None:
        """Begins at a log's beginning.

        Args:
            colours: Whether sequences that set colours and weights stay; else they are left out.
        """
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, piece: bytes, last: bool = False) -> str:
        """Returns what of the log can be shown now.

        Args:
            piece: The next bytes.
            last: Whether there are no more.
        """
        text = self._rest + self._decoder.decode(piece, last)
        unfinished = None if last else _UNFINISHED.search(text)
        self._rest = text[unfinished.start() :] if unfinished else ""
        shown = text[: unfinished.start()] if unfinished else text
        return "".join(
            part * self._colours if number % 2 else printable(part, _LOG)
            for number, part in enumerate(_COLOUR.split(shown))
        )
