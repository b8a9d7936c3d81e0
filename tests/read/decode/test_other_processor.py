"""The kernels of aarch64 against their twins in plain Python: the laws that those of here have.

They are the kernels of the read path, and those that decode Avro, JSON and Protobuf; what encodes
is Arrow's own code. qemu plays the processor (Debian: qemu-user); ``make test-long`` runs it.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kshare.read.decode import compiled, status
from kshare.read.decode.kernels import build
from kshare.read.decode.kernels.targets import named
from kshare.read.decode.layout import BATCH, BatchCount
from tests.formats.avro.test_decoder import (  # noqa: F401 - they are collected here, too
    test_a_member_of_a_union_is_read_as_the_same_type_before_one_that_it_can_become,
    test_damaged_records_are_bad_rows_or_other_values,
    test_records_are_those_of_fastavro,
    test_selected_fields_are_those_of_the_whole_record,
)
from tests.formats.json.test_decoder import (  # noqa: F401 - as above
    test_any_record_is_read_as_the_plain_reader_reads_it,
    test_damaged_bytes_are_bad_records_and_never_crash,
    test_decimals,
    test_doubles_are_the_nearest,
    test_each_odd_value_as_each_type,
    test_fields_that_are_not_wanted_are_passed_over,
    test_floats_are_the_nearest,
    test_odd_records,
    test_options_mean_the_same_to_both,
    test_places_out_of_the_data_are_bad_records,
    test_timestamps,
    test_what_is_wrong_is_said,
)
from tests.formats.json.test_variant_decoder import (  # noqa: F401 - as above
    test_any_document_is_what_spark_builds,
    test_names_that_change_from_record_to_record,
    test_odd_records_are_what_the_plain_reader_reads,
)
from tests.formats.test_protobuf import (  # noqa: F401 - as above
    test_a_fault_says_where_and_what,
    test_a_time_out_of_range_is_bad,
    test_any_bytes_are_rows_or_faults,
    test_damaged_messages_are_bad_rows,
    test_entries_of_maps_that_lack_something,
    test_few_bytes_make_no_more_values_than_allowed,
    test_fields_in_several_parts,
    test_message_indexes,
    test_messages_are_the_rows_that_spark_makes_of_them,
    test_nulls_and_default_values,
    test_proto2,
    test_some_fields_are_those_of_all,
    test_unknown_fields_are_passed_over,
)
from tests.read.decode.test_kernels import (  # noqa: F401 - as above
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
from tests.read.decode.test_keys import (  # noqa: F401 - they are collected here, too
    test_keys_that_collide,
    test_of_keys_with_one_hash_only_the_wanted_comes,
    test_only_wanted_keys_come,
)
from tests.read.decode.test_records import (  # noqa: F401 - as above
    test_every_codec,
    test_headers_of_many_rows,
)
from tests.support.batches import Rec, batch_of
from tests.support.other_processor import OtherProcessor, built_driver, emulator

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
