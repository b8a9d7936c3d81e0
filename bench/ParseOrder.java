import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.util.Base64;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;

/**
 * Protobuf as {@code from_protobuf} reads it, for benchmarks where spark-protobuf cannot be had.
 *
 * <p>{@link Alone} parses a message, which from_protobuf does too before it makes a row of it: so
 * from_protobuf is slower. {@link ToRow} makes a row of its fields, as a user's function would.
 */
public final class ParseOrder {
  private static Descriptor descriptor;
  private static FieldDescriptor[] fields;

  private ParseOrder() {}

  /** Says which message is parsed: the last one of the only file of a descriptor set in base 64. */
  public static void describe(String text) throws Exception {
    FileDescriptorSet set = FileDescriptorSet.parseFrom(Base64.getDecoder().decode(text));
    FileDescriptor file = FileDescriptor.buildFrom(set.getFile(0), new FileDescriptor[0]);
    List<Descriptor> messages = file.getMessageTypes();
    descriptor = messages.get(messages.size() - 1);
    fields = descriptor.getFields().toArray(new FieldDescriptor[0]);
  }

  /** How many fields of a message are not in its schema; from_protobuf looks at them, too. */
  public static final class Alone implements UDF1<byte[], Integer> {
    @Override
    public Integer call(byte[] message) throws Exception {
      return DynamicMessage.parseFrom(descriptor, message).getUnknownFields().asMap().size();
    }
  }

  /** A message's fields. */
  public static final class ToRow implements UDF1<byte[], Row> {
    @Override
    public Row call(byte[] message) throws Exception {
      DynamicMessage parsed = DynamicMessage.parseFrom(descriptor, message);
      Object[] values = new Object[fields.length];
      for (int n = 0; n < values.length; n++) {
        values[n] = parsed.getField(fields[n]);
      }
      return RowFactory.create(values);
    }
  }
}
