"""Lines of a log that others cannot forge: they hold names and errors of brokers and members."""

import logging

from kshare.core.listing import printable_lines

__all__ = ["PrintableFormatter"]


class PrintableFormatter(logging.Formatter):
    """Formats as its base does; what would move a cursor, or begin a line, is shown as such.

    A line that follows another, as of a traceback, is indented. For the handlers of applications::

        handler = logging.StreamHandler()
        handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return printable_lines(super().format(record))
