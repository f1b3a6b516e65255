package understudy.spark;

import java.io.IOException;
import java.io.InputStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.errors.QueryExecutionErrors;

/** Record batches that a Python process reads from the input. */
final class ProcessedBatches implements ArrowBatches {
  private final IdleProcesses processes;
  private final PythonProcess process;
  private final ArrowStreamReader reader;
  private boolean isAnswered;

  ProcessedBatches(PythonCommand command, byte[] task, BufferAllocator memory) {
    this.processes = IdleProcesses.readers(command);
    this.process = processes.take();
    this.reader = new ArrowStreamReader(new Answer(), memory);
    process.send(task);
  }

  @Override
  public boolean next() throws IOException {
    try {
      return reader.loadNextBatch() || !isEnded();
    } catch (PythonException error) {
      isAnswered = false;
      throw Errors.unchecked(
          QueryExecutionErrors.pythonStreamingDataSourceRuntimeError("read", error.getMessage()));
    }
  }

  @Override
  public VectorSchemaRoot vectors() throws IOException {
    return reader.getVectorSchemaRoot();
  }

  @Override
  public void close() throws IOException {
    try {
      reader.close();
    } finally {
      if (isAnswered) {
        processes.giveBack(process);
      } else {
        process.close();
      }
    }
  }

  /** Read the reply after the data: an error may come after the last row. */
  private boolean isEnded() {
    while (!isAnswered) {
      isAnswered = process.next().kind() == PythonProcess.REPLY;
    }
    return true;
  }

  /** The data of the answer as one stream. */
  private final class Answer extends InputStream {
    private byte[] data = new byte[0];
    private int at;

    @Override
    public int read() {
      return hasData() ? data[at++] & 0xff : -1;
    }

    @Override
    public int read(byte[] target, int offset, int most) {
      if (most == 0) {
        return 0;
      }
      if (!hasData()) {
        return -1;
      }
      int count = Math.min(most, data.length - at);
      System.arraycopy(data, at, target, offset, count);
      at += count;
      return count;
    }

    private boolean hasData() {
      while (at == data.length) {
        if (isAnswered) {
          return false;
        }
        PythonProcess.Frame frame = process.next();
        isAnswered = frame.kind() == PythonProcess.REPLY;
        data = isAnswered ? new byte[0] : frame.payload();
        at = 0;
      }
      return true;
    }
  }
}
