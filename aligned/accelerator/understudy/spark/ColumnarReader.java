package understudy.spark;

import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Shows Arrow's vectors to Spark. Spark closes it at the end of the task, however that ends. */
final class ColumnarReader implements PartitionReader<ColumnarBatch> {
  private final ArrowBatches batches;
  private final BufferAllocator memory;
  private ColumnarBatch shown;

  ColumnarReader(ArrowBatches batches, BufferAllocator memory) {
    this.batches = batches;
    this.memory = memory;
  }

  @Override
  public boolean next() throws IOException {
    if (!batches.next()) {
      return false;
    }
    VectorSchemaRoot vectors = batches.vectors();
    if (shown == null) {
      shown =
          new ColumnarBatch(
              vectors.getFieldVectors().stream().map(LentColumn::new).toArray(ColumnVector[]::new));
    }
    shown.setNumRows(vectors.getRowCount());
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return shown;
  }

  @Override
  public void close() throws IOException {
    try {
      batches.close();
    } finally {
      memory.close();
    }
  }

  /** A column whose memory the reader owns: Spark closes the columns of a batch before it asks for the next. */
  private static final class LentColumn extends ArrowColumnVector {
    LentColumn(FieldVector vector) {
      super(vector);
    }

    @Override
    public void close() {}

    @Override
    public void closeIfFreeable() {}
  }
}
