"""The names of a variant's fields: each has a number in a table, and an id in a record.

Records of a topic mostly have the same names in the same order. So names stay in the table from one
record to the next, and each remembers which one came behind it: a name is compared with that one
before it is looked for by its hash. Python empties the table when it is full.

Cost: 3 ns for a name that comes behind the same one as before, 15 ns for another one.
"""

from kshare.read.decode import status, variant_kind
from kshare.read.decode.kernels.json_text import (
    ESCAPES,
    first_word,
    has_half_pair,
    is_same,
    unescape,
)
from kshare.read.decode.kernels.native import (
    Int,
    Record,
    copy,
    hash_key,
    helper,
    load_i32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    variant_key_at,
)
from kshare.read.decode.layout import COPY_SLACK, VARIANT_FIELD, VARIANT_KEY

__all__ = ["HARD", "begin_keys", "key_id", "seen_key", "sort_fields"]

HARD = -100

_KEY_SIZE = VARIANT_KEY.itemsize
_FIELD_SIZE = VARIANT_FIELD.itemsize
_PROBES_MAX = 64  # names whose hashes were made to be alike cost no more
_SHORT_SORT = 24  # fields
_NAME_MAX = 50_000  # bytes; the plain reader knows how many characters a name may have
_FULL = status.FULL


@helper
def _key(state: Record, number: int) -> Record:
    return variant_key_at(state.keys + _KEY_SIZE * number)


@helper
def key_id(state: Record, number: int) -> Int:
    """The id of a key in the record that is being read."""
    return _key(state, number).id


@helper
def begin_keys(state: Record) -> None:
    """Begin a record: no key has an id."""
    state.stamp += 1
    state.id_count = 0
    state.is_same = 1
    state.last_key = -1


@helper
def _order_of(byte: int) -> Int:
    """What Java sorts a byte of UTF-8 by: its characters above U+FFFF begin with surrogates."""
    return byte + 0x10 if byte in (0xEE, 0xEF) else byte


@helper
def _order_word(at: int, size: int) -> Int:
    word = 0
    byte = 0
    while byte < 8:
        value = _order_of(load_u8(at + byte)) if byte < size else 0
        if byte == 0:
            value ^= 0x80  # numbers have a sign
        word |= value << (56 - 8 * byte)
        byte += 1
    return word


@helper
def _is_before(state: Record, one: int, other: int) -> bool:
    """True if a key sorts before another one."""
    first, second = _key(state, one), _key(state, other)
    if first.order != second.order:
        return bool(first.order < second.order)
    size = min(first.size, second.size)
    at = 0
    while at < size:
        left = load_u8(state.names + first.name + at)
        right = load_u8(state.names + second.name + at)
        if left != right:
            return bool(_order_of(left) < _order_of(right))
        at += 1
    return bool(first.size < second.size)


@helper
def _new_key(state: Record, slot: int, at: int, size: int, word: int) -> Int:
    """Add a key; return its number, or FULL."""
    number = state.key_count
    if number >= state.key_capacity or size > state.names_capacity - state.names_used:
        state.lacking = variant_kind.LACKS_KEYS
        return _FULL
    target = state.names + state.names_used
    if target != at:
        copy(target, at, size)
    key = _key(state, number)
    key.word = word
    key.order = _order_word(target, size)
    key.name = state.names_used
    key.size = size
    key.stamp = 0
    key.id = 0
    key.following = -1
    state.names_used += size
    state.key_count = number + 1
    store_i32(state.slots + 4 * slot, number + 1)
    return number


@helper
def _found_key(state: Record, at: int, size: int, end: int) -> Int:
    """The number of the key with a name; FULL, HARD: there is none."""
    word = first_word(at, size, end)
    last = state.last_key
    if last >= 0:
        guess = _key(state, last).following
        if guess >= 0:
            key = _key(state, guess)
            if key.word == word and key.size == size and is_same(at, state.names + key.name, size):
                return guess
    elif state.key_count > 0:
        key = _key(state, 0)
        if key.word == word and key.size == size and is_same(at, state.names + key.name, size):
            return 0
    slot = hash_key(at, size, end) & state.slot_mask
    probes = 0
    while probes < _PROBES_MAX:
        number = load_i32(state.slots + 4 * slot) - 1
        if number < 0:
            return _new_key(state, slot, at, size, word)
        key = _key(state, number)
        if key.word == word and key.size == size and is_same(at, state.names + key.name, size):
            return number
        slot = (slot + 1) & state.slot_mask
        probes += 1
    return HARD


@helper
def _give_id(state: Record, number: int) -> None:
    """Give a key the next id, if the record has not had it."""
    key = _key(state, number)
    if key.stamp == state.stamp:
        return
    key.stamp = state.stamp
    count = state.id_count
    key.id = count
    at = state.ids + 4 * count
    if count >= state.same_count or load_i32(at) != number:
        state.is_same = 0
        store_i32(at, number)
    state.id_count = count + 1


@helper
def seen_key(state: Record, at: int, stop: int, end: int, found: int) -> Int:
    """Note a name, whose string was checked.

    Args:
        state: VariantState.
        at: Address of its first byte.
        stop: Address of the closing quote.
        end: End of the record.
        found: Whether it has ESCAPES and HIGH_BYTES; the latter are UTF-8.

    Returns:
        The number of its key; FULL or HARD.
    """
    size = stop - at
    if size > _NAME_MAX:
        return HARD
    if found & ESCAPES != 0:
        if has_half_pair(at, stop):
            return HARD
        if size > state.names_capacity - state.names_used:
            state.lacking = variant_kind.LACKS_KEYS
            return _FULL
        target = state.names + state.names_used
        size = unescape(at, stop, target)
        at = target
        end = state.names + state.names_capacity + COPY_SLACK
    number = _found_key(state, at, size, end)
    if number < 0:
        return number
    if state.last_key >= 0:
        _key(state, state.last_key).following = number
    state.last_key = number
    _give_id(state, number)
    return number


# -- sorting ---------------------------------------------------------------------------------------


@helper
def _key_of(field: int) -> Int:
    """The key of a VARIANT_FIELD that was loaded as one number."""
    return field & 0xFFFFFFFF


@helper
def _sink(state: Record, first: int, root: int, count: int) -> None:
    """Move a field of a heap down to where it belongs."""
    field = load_i64(first + _FIELD_SIZE * root)
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        value = load_i64(first + _FIELD_SIZE * child)
        if child + 1 < count:
            other = load_i64(first + _FIELD_SIZE * (child + 1))
            if _is_before(state, _key_of(value), _key_of(other)):
                child += 1
                value = other
        if not _is_before(state, _key_of(field), _key_of(value)):
            break
        store_i64(first + _FIELD_SIZE * root, value)
        root = child
    store_i64(first + _FIELD_SIZE * root, field)


@helper
def _heap_sort(state: Record, first: int, count: int) -> None:
    root = count >> 1
    while root > 0:
        root -= 1
        _sink(state, first, root, count)
    while count > 1:
        count -= 1
        last = load_i64(first + _FIELD_SIZE * count)
        store_i64(first + _FIELD_SIZE * count, load_i64(first))
        store_i64(first, last)
        _sink(state, first, 0, count)


@helper
def sort_fields(state: Record, first: int, count: int) -> Int:
    """Sort the fields of an object by their names, as Java does.

    Args:
        state: VariantState.
        first: Address of the first one.
        count: Number of fields.

    Returns:
        The greatest id; -1: two fields have the same name.
    """
    if count > _SHORT_SORT:
        _heap_sort(state, first, count)
    else:
        place = 1
        while place < count:
            field = load_i64(first + _FIELD_SIZE * place)
            key = _key_of(field)
            before = place - 1
            while before >= 0:
                other = load_i64(first + _FIELD_SIZE * before)
                if not _is_before(state, key, _key_of(other)):
                    break
                store_i64(first + _FIELD_SIZE * (before + 1), other)
                before -= 1
            store_i64(first + _FIELD_SIZE * (before + 1), field)
            place += 1
    greatest = 0
    last = -1
    place = 0
    while place < count:
        number = load_i32(first + _FIELD_SIZE * place)
        if number == last:
            return -1
        greatest = max(greatest, key_id(state, number))
        last = number
        place += 1
    return greatest
