package understudy.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@code load()} found: the columns, and the options as Python has parsed them.
 *
 * <p>It keeps the process that checked the options for a minute: the first query takes it as its planner, so that a
 * process starts once, and with it its connections to the inputs. Later one waits without connections.
 */
final class LoadedSource {
  private static final Duration KEPT = Duration.ofSeconds(60);

  private final StructType schema;
  private final ReadLimit limit;
  private final String options;
  private final List<String> inputs;
  private final IdleProcesses planners;
  private PythonProcess kept;

  private LoadedSource(IdleProcesses planners, PythonProcess process, JsonNode reply) {
    this.planners = planners;
    this.schema = (StructType) DataType.fromDDL(reply.get("schema").textValue());
    this.limit =
        reply.has("max_rows")
            ? ReadLimit.maxRows(reply.get("max_rows").longValue())
            : ReadLimit.maxBytes(reply.get("max_bytes").longValue());
    this.options = reply.get("options").textValue();
    this.inputs = new ArrayList<>();
    reply.get("inputs").forEach(kind -> inputs.add(kind.textValue()));
    this.kept = process;
    Daemons.after(KEPT, this::closeKept);
  }

  /** Check options in a process that knows of no others. Throws AnalysisException, as Python sources do. */
  static LoadedSource load(CaseInsensitiveStringMap options, boolean hasSchema, boolean isBatch) {
    String release = org.apache.spark.package$.MODULE$.SPARK_VERSION();
    if (release.startsWith("3.")) { // Its classes are others, and what they lack would be all that an error says.
      throw new UnsupportedOperationException(
          "the source 'understudy' needs Spark 4.3, and this is " + release
              + ". Read Kafka with format('kafka') here: `announce` works with PySpark 3.5");
    }
    IdleProcesses planners = IdleProcesses.planners();
    PythonProcess process = null;
    try {
      process = planners.take();
      // Spark's parser takes half a second at its first use in a JVM, about as long as Python's start.
      Daemons.thread(() -> DataType.fromDDL("used INT"), "understudy-parser").start();
      ObjectNode call = Json.call("load").put("has_schema", hasSchema).put("is_batch", isBatch);
      ObjectNode named = call.putObject("options");
      options.forEach(named::put);
      LoadedSource loaded = new LoadedSource(planners, process, process.ask(call));
      process = null;
      return loaded;
    } catch (PythonException error) {
      throw Errors.unchecked(QueryCompilationErrors.pythonDataSourceError("create", "understudy", error.getMessage()));
    } finally {
      if (process != null) {
        process.close();
      }
    }
  }

  StructType schema() {
    return schema;
  }

  ReadLimit limit() {
    return limit;
  }

  /** Return a planner process for one run of a query, which closes it. */
  PythonProcess takePlanner() {
    PythonProcess process = takeKept();
    if (process != null && process.isAlive()) {
      return process;
    }
    PythonProcess started = planners.take();
    try {
      started.ask(Json.call("open").put("options", options));
      return started;
    } catch (RuntimeException | Error error) {
      started.close();
      throw error;
    }
  }

  /** Start the planner process of the next query in the background: a query is often started again, or later. */
  void prepareNext() {
    planners.prepare(inputs);
  }

  private synchronized PythonProcess takeKept() {
    PythonProcess process = kept;
    kept = null;
    return process;
  }

  private void closeKept() {
    PythonProcess process = takeKept();
    if (process != null) {
      process.close();
      prepareNext();
    }
  }
}
