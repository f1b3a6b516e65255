package understudy.spark;

import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Opens the readers of tasks on executors. */
final class TaskReaders implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private static final BufferAllocator ROOT = new RootAllocator();

  private final PythonCommand command;

  TaskReaders(PythonCommand command) {
    this.command = command;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    throw new UnsupportedOperationException("rows come as columns");
  }

  /** Read the spool; if its file is gone or incomplete, let a Python process read the input. */
  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    PlannedTask task = (PlannedTask) partition;
    BufferAllocator memory = ROOT.newChildAllocator("understudy", 0, Long.MAX_VALUE);
    try {
      if (task.file() != null) {
        try {
          return new ColumnarReader(new SpooledBatches(task, memory), memory);
        } catch (IOException | RuntimeException unreadable) {
          // The spool is only a cache.
        }
      }
      return new ColumnarReader(new ProcessedBatches(command, task.task(), memory), memory);
    } catch (RuntimeException | Error error) {
      memory.close();
      throw error;
    }
  }
}
