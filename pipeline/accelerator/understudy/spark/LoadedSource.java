package understudy.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@code load()} found: the columns, and the options as Python has parsed them.
 *
 * <p>It keeps the process that checked the options for a while: the first query takes it as its planner, so that a
 * process starts once.
 */
final class LoadedSource {
  private static final Duration KEPT = Duration.ofSeconds(60);

  private final StructType schema;
  private final ReadLimit limit;
  private final String options;
  private final PythonCommand command;
  private PythonProcess kept;

  private LoadedSource(PythonCommand command, PythonProcess process, JsonNode reply) {
    this.command = command;
    this.schema = (StructType) DataType.fromDDL(reply.get("schema").textValue());
    this.limit =
        reply.has("max_rows")
            ? ReadLimit.maxRows(reply.get("max_rows").longValue())
            : ReadLimit.maxBytes(reply.get("max_bytes").longValue());
    this.options = reply.get("options").textValue();
    this.kept = process;
    Daemons.after(KEPT, this::closeKept);
  }

  /** Check options in a new process. Throws AnalysisException, as Python sources do. */
  static LoadedSource load(CaseInsensitiveStringMap options, boolean hasSchema, boolean isBatch) {
    PythonCommand command = PythonCommand.ofDriver();
    PythonProcess process = PythonProcess.start(command, PythonCommand.PLANNER);
    try {
      ObjectNode call = Json.call("load").put("has_schema", hasSchema).put("is_batch", isBatch);
      ObjectNode named = call.putObject("options");
      options.forEach(named::put);
      return new LoadedSource(command, process, process.ask(call));
    } catch (PythonException error) {
      process.close();
      throw Errors.unchecked(QueryCompilationErrors.pythonDataSourceError("create", "understudy", error.getMessage()));
    } catch (RuntimeException | Error error) {
      process.close();
      throw error;
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
    PythonProcess started = PythonProcess.start(command, PythonCommand.PLANNER);
    try {
      started.ask(Json.call("open").put("options", options));
      return started;
    } catch (RuntimeException | Error error) {
      started.close();
      throw error;
    }
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
    }
  }
}
