package understudy.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.errors.QueryExecutionErrors;

/** One run of a query: passes Spark's calls on to the planner process, which the first call starts. */
final class AlignedStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final LoadedSource source;
  /** This source's folder in the query's checkpoint, {@code <checkpoint>/sources/<number>}; null on another machine. */
  private final String folder;
  private PythonProcess planner;
  private boolean isStopped;
  /** The file of the batch that was planned last, if its readers are counted. */
  private String planned;

  AlignedStream(LoadedSource source, String checkpoint) {
    this.source = source;
    URI uri = new Path(checkpoint).toUri();
    this.folder = uri.getScheme() == null || uri.getScheme().equals("file") ? uri.getPath() : null;
  }

  /** An offset, in the text that the planner gave it and that Spark logs. */
  private static final class TextOffset extends Offset {
    private final String json;

    TextOffset(String json) {
      this.json = json;
    }

    @Override
    public String json() {
      return json;
    }
  }

  @Override
  public Offset initialOffset() {
    return new TextOffset(ask(Json.call("initial")).get("offset").textValue());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new TextOffset(json);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return source.limit();
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    try {
      ask(Json.call("finish_at_current_ends"));
    } catch (Throwable error) {
      stop(); // Spark does not: the query is not built yet.
      throw error;
    }
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with a start and a limit");
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    boolean isEverything = limit instanceof ReadAllAvailable;
    ObjectNode call = Json.call("latest").put("start", start.json()).put("is_everything", isEverything);
    JsonNode end = ask(call.put("unread", takeUnread())).get("offset");
    return end.isNull() ? start : new TextOffset(end.textValue());
  }

  /** The metrics, which Spark shows in the query's progress. */
  @Override
  public Offset reportLatestOffset() {
    JsonNode metrics = ask(Json.call("metrics")).get("metrics");
    return metrics.isNull() ? null : new TextOffset(metrics.textValue());
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    JsonNode tasks = ask(Json.call("tasks").put("start", start.json()).put("end", end.json())).get("tasks");
    InputPartition[] partitions = new InputPartition[tasks.size()];
    // Readers in other JVMs cannot be counted here.
    boolean isCounted = SparkContext.getOrCreate().isLocal();
    try {
      for (int number = 0; number < partitions.length; number++) {
        PlannedTask task = PlannedTask.of(tasks.get(number), isCounted);
        if (isCounted && task.file() != null) {
          admit(task.file());
        }
        partitions[number] = task;
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new TaskReaders(PythonCommand.ofExecutors());
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public synchronized void stop() {
    isStopped = true;
    admit(null);
    if (planner != null) {
      planner.close();
      planner = null;
      source.prepareNext();
    }
  }

  @Override
  public String toString() {
    return "Understudy (accelerator jar)";
  }

  /** Let readers open this file, and no longer the one of the batch before. */
  private synchronized void admit(String path) {
    if (planned != null && !planned.equals(path)) {
      SpoolFiles.forget(planned);
    }
    planned = path;
    if (path != null) {
      SpoolFiles.admit(path);
    }
  }

  /** Return the file of the last batch, which has been run, if no reader has it or can open it any more; else null. */
  private synchronized String takeUnread() {
    if (planned == null || !SpoolFiles.retire(planned)) {
      return null;
    }
    String unread = planned;
    planned = null;
    return unread;
  }

  private JsonNode ask(ObjectNode call) {
    try {
      return planner().ask(call);
    } catch (PythonException error) {
      throw Errors.unchecked(
          QueryExecutionErrors.pythonStreamingDataSourceRuntimeError(call.get("call").textValue(), error.getMessage()));
    }
  }

  private synchronized PythonProcess planner() {
    if (isStopped) {
      throw new PythonException("the query has been stopped");
    }
    if (planner == null) {
      planner = source.takePlanner();
      if (folder != null) {
        planner.ask(Json.call("checkpoint").put("folder", folder));
      }
    }
    return planner;
  }
}
