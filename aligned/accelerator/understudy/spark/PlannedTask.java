package understudy.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What one Spark task reads.
 *
 * @param file the spool file with its rows, or null
 * @param batches the numbers of its record batches in the file
 * @param isCounted whether its readers are counted, by {@link SpoolFiles}
 * @param task the same task for a Python process, which reads it from the input
 */
record PlannedTask(String file, int[] batches, boolean isCounted, byte[] task) implements InputPartition {
  static PlannedTask of(JsonNode found, boolean isCounted) throws IOException {
    JsonNode numbers = found.get("batches");
    int[] batches = new int[numbers.size()];
    for (int index = 0; index < batches.length; index++) {
      batches[index] = numbers.get(index).intValue();
    }
    return new PlannedTask(found.get("file").textValue(), batches, isCounted, found.get("task").binaryValue());
  }
}
