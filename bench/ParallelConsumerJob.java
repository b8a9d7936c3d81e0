import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Confluent's Parallel Consumer at work: SERVERS TOPIC RECORDS CONCURRENCY WORK, see processing_jobs.py. */
public class ParallelConsumerJob {
    interface Work {
        void on(byte[] value) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        int records = Integer.parseInt(args[2]);
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", "bench-" + UUID.randomUUID());
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("key.deserializer", ByteArrayDeserializer.class.getName());
        config.put("value.deserializer", ByteArrayDeserializer.class.getName());
        ParallelConsumerOptions<byte[], byte[]> options =
            ParallelConsumerOptions.<byte[], byte[]>builder()
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(Integer.parseInt(args[3]))
                .consumer(new KafkaConsumer<byte[], byte[]>(config))
                .build();
        ParallelStreamProcessor<byte[], byte[]> processor =
            ParallelStreamProcessor.createEosStreamProcessor(options);
        Work work = work(args[4]);
        AtomicInteger handled = new AtomicInteger();
        AtomicLong began = new AtomicLong();
        CountDownLatch over = new CountDownLatch(1);
        AtomicLong ended = new AtomicLong();
        processor.subscribe(List.of(args[1]));
        processor.poll(context -> {
            if (began.get() == 0) {
                began.compareAndSet(0, System.nanoTime());
            }
            try {
                work.on(context.value());
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
            if (handled.incrementAndGet() == records) {
                ended.set(System.nanoTime());
                over.countDown();
            }
        });
        over.await();
        System.out.println("{\"seconds\": " + (ended.get() - began.get()) / 1e9 + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Work work(String name) {
        if (!name.startsWith("http")) {
            long millis = Long.parseLong(name);
            return millis == 0 ? value -> {} : value -> Thread.sleep(millis);
        }
        HttpClient client = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(10)).build();
        return value -> {
            HttpRequest request = HttpRequest.newBuilder(URI.create(name))
                .POST(HttpRequest.BodyPublishers.ofByteArray(value)).build();
            int status = client.send(request, HttpResponse.BodyHandlers.discarding()).statusCode();
            if (status != 200) {
                throw new IllegalStateException("HTTP status " + status);
            }
        };
    }
}
