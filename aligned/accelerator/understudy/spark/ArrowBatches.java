package understudy.spark;

import java.io.Closeable;
import java.io.IOException;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Record batches, one after the other in the same vectors. */
interface ArrowBatches extends Closeable {
  /** Load the next batch into {@link #vectors}. Returns false after the last one. */
  boolean next() throws IOException;

  /** The vectors of the batch; valid after the first {@link #next}. */
  VectorSchemaRoot vectors() throws IOException;
}
