package understudy.spark;

import java.io.FileInputStream;
import java.io.IOException;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.arrow.vector.ipc.message.ArrowBlock;

/** Some record batches of a spool file. An open file stays readable when it is removed. */
final class SpooledBatches implements ArrowBatches {
  private final FileInputStream file;
  private final ArrowFileReader reader;
  private final List<ArrowBlock> blocks;
  private final int[] numbers;
  private int done;

  /** Open the file. Throws if it is gone or incomplete. */
  SpooledBatches(String path, int[] numbers, BufferAllocator memory) throws IOException {
    this.numbers = numbers;
    this.file = new FileInputStream(path);
    this.reader = new ArrowFileReader(file.getChannel(), memory);
    try {
      this.blocks = reader.getRecordBlocks();
      reader.getVectorSchemaRoot();
      for (int number : numbers) {
        blocks.get(number);
      }
    } catch (IOException | RuntimeException error) {
      close();
      throw error;
    }
  }

  @Override
  public boolean next() throws IOException {
    if (done == numbers.length) {
      return false;
    }
    if (!reader.loadRecordBatch(blocks.get(numbers[done]))) {
      throw new IOException("the spool file ends before its record batch " + numbers[done]);
    }
    done++;
    return true;
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
      file.close();
    }
  }
}
