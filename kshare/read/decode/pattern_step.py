"""The steps through a text by a pattern of dates and times; see JSON_STEP for their numbers."""

from typing import Final

BEGIN: Final = 0  # first: what it is, below; second: 1 if a text that does not fit is surely wrong
LITERAL: Final = 1  # first: the byte
OPTIONAL: Final = 2  # first: the steps to leave out if the next one's first byte is not there
ZONE: Final = 3  # first: of UTC, HOURS and COLON
HALF: Final = 4  # AM or PM
FRACTION: Final = 5  # first: digits; second: by what they are multiplied, or divided if below 0
YEAR: Final = 6  # this and all below: first: digits at least; second: at most
SHORT_YEAR: Final = 7  # of this century
MONTH: Final = 8
DAY: Final = 9
HOUR: Final = 10
HOUR_OF_HALF: Final = 11  # 1 to 12
MINUTE: Final = 12
SECOND: Final = 13
KINDS: Final = 14

DATE: Final = 0
TIMESTAMP: Final = 1
LOCAL_TIMESTAMP: Final = 2

UTC: Final = 1  # Z is an offset, too
HOURS: Final = 2  # minutes may be left out
COLON: Final = 4  # there is a colon before them
