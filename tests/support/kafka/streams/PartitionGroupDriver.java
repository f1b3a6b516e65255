package org.apache.kafka.streams.processor.internals;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.metrics.MeasurableStat;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.internals.metrics.StreamsMetricsImpl;

/**
 * Drives Kafka's own PartitionGroup and RecordQueue as a stream thread does, by commands on standard input, one a line.
 * It is in their package because they are private to it. tests/support/kafka/partition_group.py says what the commands
 * are, and answers the same ones. A partition is written `topic-number`, and -1 is a record without a timestamp.
 */
public final class PartitionGroupDriver {
    private static final LogContext LOG = new LogContext();

    private final Sum lateness = new Sum();
    private final Sum enforced = new Sum();
    private final Sensor latenessSensor;
    private final Sensor enforcedSensor;
    private final InternalProcessorContext<?, ?> context;

    private final Map<TopicPartition, List<Long>> logs = new HashMap<>();
    private final Map<TopicPartition, Integer> fetched = new HashMap<>();
    private final Map<TopicPartition, Integer> consumed = new HashMap<>();
    private final Map<TopicPartition, Long> times = new HashMap<>();
    private final Map<TopicPartition, Long> lags = new HashMap<>();
    private final Map<Integer, PartitionGroup> groups = new HashMap<>();

    private PartitionGroupDriver() throws ReflectiveOperationException {
        final Metrics metrics = new Metrics();
        latenessSensor = metrics.sensor("lateness");
        latenessSensor.add(new MetricName("lateness", "driver", "", Map.of()), lateness);
        enforcedSensor = metrics.sensor("enforced");
        enforcedSensor.add(new MetricName("enforced", "driver", "", Map.of()), enforced);
        final StreamsMetricsImpl streamsMetrics = streamsMetrics(metrics);
        context = (InternalProcessorContext<?, ?>) Proxy.newProxyInstance(
            PartitionGroupDriver.class.getClassLoader(),
            new Class<?>[] {InternalProcessorContext.class},
            (proxy, method, arguments) -> switch (method.getName()) {
                case "taskId" -> new TaskId(0, 0);
                case "metrics" -> streamsMetrics;
                default -> throw new UnsupportedOperationException(method.toString());
            });
    }

    public static void main(final String[] arguments) throws Exception {
        final PartitionGroupDriver driver = new PartitionGroupDriver();
        final BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        final PrintStream answers = new PrintStream(System.out, false);
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            final String answer = driver.apply(line.split(" "));
            if (answer != null) {
                answers.println(answer);
            }
        }
        answers.flush();
    }

    private String apply(final String[] words) {
        switch (words[0]) {
            case "begin" -> begin();
            case "log" -> logs.put(partition(words[1]), Arrays.stream(words).skip(2).map(Long::valueOf).toList());
            case "open" -> open(Integer.parseInt(words[1]), Long.parseLong(words[2]), partitions(words, 3));
            case "close" -> close(Integer.parseInt(words[1]));
            case "assign" -> assign(Integer.parseInt(words[1]), partitions(words, 2));
            case "fetch" -> fetch(Integer.parseInt(words[1]), partition(words[2]), Integer.parseInt(words[3]));
            case "lag" -> lag(partition(words[1]), words[2]);
            case "run" -> {
                return run(Integer.parseInt(words[1]), Long.parseLong(words[2]), Integer.parseInt(words[3]));
            }
            // Kafka has one idle time for all inputs, and no drift.
            case "idle", "drift" -> { }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return null;
    }

    private void begin() {
        for (final Map<?, ?> each : List.of(logs, fetched, consumed, times, lags, groups)) {
            each.clear();
        }
        lateness.clear();
        enforced.clear();
    }

    /** A task that is created, or comes back: its partition times are those of the last commit. */
    private void open(final int task, final long idleMs, final Set<TopicPartition> partitions) {
        final Map<TopicPartition, RecordQueue> queues = new LinkedHashMap<>();
        partitions.forEach(each -> queues.put(each, queue(each)));
        final PartitionGroup group = new PartitionGroup(
            LOG,
            queues,
            each -> lags.containsKey(each) ? OptionalLong.of(lags.get(each)) : OptionalLong.empty(),
            latenessSensor,
            enforcedSensor,
            idleMs);
        partitions.stream().filter(times::containsKey).forEach(each -> group.setPartitionTime(each, times.get(each)));
        groups.put(task, group);
    }

    private void close(final int task) {
        final PartitionGroup group = groups.remove(task);
        for (final TopicPartition each : group.partitions()) {
            times.put(each, group.partitionTimestamp(each));
            forget(each);
        }
        group.close();
    }

    private void assign(final int task, final Set<TopicPartition> partitions) {
        final PartitionGroup group = groups.get(task);
        new ArrayList<>(group.partitions()).stream().filter(each -> !partitions.contains(each)).forEach(this::forget);
        group.updatePartitions(partitions, this::queue);
    }

    /** What was fetched and not processed is fetched once more when the partition comes back. */
    private void forget(final TopicPartition partition) {
        fetched.put(partition, consumed.getOrDefault(partition, 0));
        lags.remove(partition);
    }

    private void fetch(final int task, final TopicPartition partition, final int count) {
        final int from = fetched.getOrDefault(partition, 0);
        final int to = Math.min(from + count, logs.get(partition).size());
        final List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int offset = from; offset < to; offset++) {
            records.add(new ConsumerRecord<>(
                partition.topic(), partition.partition(), offset, logs.get(partition).get(offset),
                TimestampType.CREATE_TIME, 0, 0, new byte[0], new byte[0], new RecordHeaders(), Optional.empty()));
        }
        fetched.put(partition, to);
        lags.computeIfPresent(partition, (each, lag) -> lag - records.size());
        groups.get(task).addRawRecords(partition, records);
    }

    private void lag(final TopicPartition partition, final String records) {
        if (records.equals("?")) {
            lags.remove(partition);
        } else {
            lags.put(partition, Long.valueOf(records));
        }
    }

    /** One turn of a stream thread: new lags, then records as long as the task is ready, at most `limit`. */
    private String run(final int task, final long nowMs, final int limit) {
        final PartitionGroup group = groups.get(task);
        final AbstractPartitionGroup.RecordInfo from = new AbstractPartitionGroup.RecordInfo();
        final StringBuilder taken = new StringBuilder();
        group.updateLags();
        for (int count = 0; count != limit && group.readyToProcess(nowMs); count++) {
            final StampedRecord record = group.nextRecord(from, nowMs);
            if (record == null) {
                break;
            }
            // A task commits the offset of such a record and does not process it.
            if (!(record instanceof CorruptedRecord)) {
                taken.append(' ').append(from.partition()).append('@').append(record.offset());
            }
            consumed.put(from.partition(), (int) record.offset() + 1);
        }
        return "stream-time=" + group.streamTime() + " enforced=" + enforced.total + " late=" + lateness.count + "/"
            + lateness.total + "/" + lateness.max + taken;
    }

    private RecordQueue queue(final TopicPartition partition) {
        return new RecordQueue(
            partition,
            new SourceNode<>(partition.topic(), new ByteArrayDeserializer(), new ByteArrayDeserializer()),
            (record, partitionTime) -> record.timestamp(),
            null,
            context,
            LOG);
    }

    private static Set<TopicPartition> partitions(final String[] words, final int from) {
        final Set<TopicPartition> found = new LinkedHashSet<>();
        Arrays.stream(words).skip(from).forEach(each -> found.add(partition(each)));
        return found;
    }

    private static TopicPartition partition(final String word) {
        final int dash = word.lastIndexOf('-');
        return new TopicPartition(word.substring(0, dash), Integer.parseInt(word.substring(dash + 1)));
    }

    /** Its parameters differ from release to release; none of them matters here. */
    private static StreamsMetricsImpl streamsMetrics(final Metrics metrics) throws ReflectiveOperationException {
        final Constructor<?> made = StreamsMetricsImpl.class.getConstructors()[0];
        final Object[] arguments = Arrays.stream(made.getParameterTypes())
            .map(type -> type == Metrics.class ? metrics : type == Time.class ? Time.SYSTEM : "driver")
            .toArray();
        return (StreamsMetricsImpl) made.newInstance(arguments);
    }

    /** Count, sum and maximum of everything that was recorded since `clear`. */
    private static final class Sum implements MeasurableStat {
        private long count;
        private long total;
        private long max;

        void clear() {
            count = total = max = 0;
        }

        @Override
        public void record(final MetricConfig config, final double value, final long timeMs) {
            count++;
            total += (long) value;
            max = Math.max(max, (long) value);
        }

        @Override
        public double measure(final MetricConfig config, final long nowMs) {
            return total;
        }
    }
}
