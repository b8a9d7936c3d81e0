"""The kernels of aarch64 against their twins in plain Python: the laws of ``test_kernels.py``.

qemu plays the processor (Debian: qemu-user); ``make test-long`` runs it.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kshare.wire.decode import compiled, status
from kshare.wire.decode.kernels import build
from kshare.wire.decode.kernels.targets import named
from kshare.wire.decode.layout import BATCH, BatchCount
from tests.support.batches import Rec, batch_of
from tests.support.other_processor import OtherProcessor, built_driver, emulator
from tests.wire.decode.test_kernels import (  # noqa: F401 - as above
    test_a_scan_finds_what_the_twin_finds,
    test_a_scan_keeps_what_the_rectangles_hold,
    test_an_index_of_more_batches_than_fit_counts_them_all,
    test_impossible_heads,
    test_nothing_of_a_record_is_read_behind_the_key_of_another_slice,
    test_records_of_a_batch_that_does_not_lie_in_the_buffer,
    test_the_index_is_that_of_the_twin,
    test_varints_of_all_sizes,
    test_varints_without_an_end,
    test_what_the_twin_refuses_the_scan_refuses,
)
from tests.wire.decode.test_keys import (  # noqa: F401 - they are collected here, too
    test_keys_that_collide,
    test_of_keys_with_one_hash_only_the_wanted_comes,
    test_only_wanted_keys_come,
)
from tests.wire.decode.test_records import (  # noqa: F401 - as above
    test_every_codec,
    test_headers_of_many_rows,
)

pytestmark = pytest.mark.long
TARGET = named("linux-aarch64")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_driver(TARGET, build.compile_object(TARGET), tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def processor(driver: Path) -> Iterator[OtherProcessor]:
    with OtherProcessor([emulator(TARGET.machine), str(driver)]) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def _the_kernels_of_the_other_processor(processor: OtherProcessor) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_kernel", processor.kernel)
        yield


def test_the_kernels_that_are_called_are_those_of_aarch64(
    driver: Path, processor: OtherProcessor
) -> None:
    assert driver.read_bytes()[18:20] == b"\xb7\0"  # EM_AARCH64
    assert compiled._kernel == processor.kernel
    data = batch_of([Rec(b"k", b"v")], base=7).encode()
    source, found = np.frombuffer(data, np.uint8), BatchCount()
    assert compiled.index(source, np.zeros(1, BATCH), found) == status.DONE
    assert (found.batches, found.end, found.next_offset) == (1, len(data), 8)


def test_without_the_emulator_an_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no qemu-aarch64.*apt-get install qemu-user"):
        emulator("aarch64")
