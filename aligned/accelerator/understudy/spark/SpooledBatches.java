package understudy.spark;

import java.io.FileInputStream;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;

/** Some record batches of a spool file, mapped. An open file stays readable when it is removed. */
final class SpooledBatches implements ArrowBatches {
  private final FileInputStream file;
  private final ArrowFileReader reader;
  private final List<ArrowBlock> blocks;
  private final int[] numbers;
  private final BufferAllocator memory;
  private final VectorLoader loader;
  private final Runnable atEnd;
  private int done;

  /** Open the file. Throws if it is gone or incomplete. */
  SpooledBatches(PlannedTask task, BufferAllocator memory) throws IOException {
    this.numbers = task.batches();
    this.memory = memory;
    this.atEnd = entered(task);
    this.file = opened(task.file(), atEnd);
    this.reader = new ArrowFileReader(file.getChannel(), memory);
    try {
      this.blocks = reader.getRecordBlocks();
      this.loader = new VectorLoader(reader.getVectorSchemaRoot());
      for (int number : numbers) {
        blocks.get(number);
      }
    } catch (IOException | RuntimeException error) {
      close();
      throw error;
    }
  }

  /** Count a reader of the file. Returns what counts it less. */
  private static Runnable entered(PlannedTask task) throws IOException {
    if (!task.isCounted()) {
      return () -> {};
    }
    String path = task.file();
    if (!SpoolFiles.enter(path)) {
      throw new IOException("the spool file may be written again");
    }
    AtomicBoolean isIn = new AtomicBoolean(true);
    return () -> {
      if (isIn.getAndSet(false)) {
        SpoolFiles.leave(path);
      }
    };
  }

  private static FileInputStream opened(String path, Runnable atEnd) throws IOException {
    try {
      return new FileInputStream(path);
    } catch (IOException error) {
      atEnd.run();
      throw error;
    }
  }

  @Override
  public boolean next() throws IOException {
    if (done == numbers.length) {
      return false;
    }
    ArrowBlock block = blocks.get(numbers[done]);
    if (MappedBatch.fits(block)) {
      try (ArrowRecordBatch batch = MappedBatch.of(file.getChannel(), block, memory)) {
        loader.load(batch);
      }
    } else if (!reader.loadRecordBatch(block)) {
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
      try {
        file.close();
      } finally {
        atEnd.run();
      }
    }
  }
}
