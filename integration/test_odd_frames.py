"""What Java's client reads of the odd shapes of each codec, asked of the client itself."""

import subprocess
from dataclasses import replace
from pathlib import Path

from integration.jars import java
from integration.kafka import class_path
from tests.support.batches import batch_of, encode_record
from tests.support.decoding import FEW
from tests.support.odd_frames import shapes

READER = """
import java.nio.ByteBuffer;
import java.nio.file.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.*;

public class Reader {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            int records = 0;
            try {
                ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Path.of(file)));
                for (MutableRecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                    batch.ensureValid();
                    try (var read = batch.streamingIterator(BufferSupplier.create())) {
                        for (; read.hasNext(); records++) read.next();
                    }
                }
            } catch (RuntimeException refused) {
                records = -1;
            }
            System.out.println(records);
        }
    }
}
"""


def test_the_table_says_what_java_reads(tmp_path: Path) -> None:
    found = shapes(b"".join(map(encode_record, FEW)))
    source = tmp_path / "Reader.java"
    source.write_text(READER)
    files = []
    for number, shape in enumerate(found.values()):
        batch = replace(batch_of(FEW, base=2, codec=shape.codec), payload=shape.payload)
        files.append(tmp_path / str(number))
        files[-1].write_bytes(batch.encode())
    command = [java(), "-cp", class_path(), str(source), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = [int(line) for line in done.stdout.split()]
    assert {name: count == len(FEW) for name, count in zip(found, read, strict=True)} == {
        name: shape.java for name, shape in found.items()
    }
