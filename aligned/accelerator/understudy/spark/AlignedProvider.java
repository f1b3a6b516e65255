package understudy.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("understudy")} without Python workers. Spark looks here before it asks for Python's sources.
 *
 * <p>All decisions stay in Python: a planner process checks options, plans batches and writes their rows to the spool,
 * from which Spark reads them as columns.
 */
public final class AlignedProvider implements TableProvider, DataSourceRegister {
  private LoadedSource loaded;

  @Override
  public String shortName() {
    return "understudy";
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true; // So that the planner can say what to do instead of giving a schema.
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    loaded = LoadedSource.load(options, false, false);
    return loaded.schema();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (loaded == null) {
      loaded = LoadedSource.load(new CaseInsensitiveStringMap(properties), true, false);
    }
    return new AlignedTable(loaded, new HashMap<>(properties));
  }

  private record AlignedTable(LoadedSource source, Map<String, String> options) implements SupportsRead {
    @Override
    public String name() {
      return "understudy";
    }

    @Override
    public StructType schema() {
      return source.schema();
    }

    /** Leaves the options out: they may hold passwords. */
    @Override
    public String toString() {
      return name();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap more) {
      return () -> new AlignedScan(source, options);
    }
  }

  private record AlignedScan(LoadedSource source, Map<String, String> options) implements Scan {
    @Override
    public StructType readSchema() {
      return source.schema();
    }

    /** Leaves the options out: they may hold passwords. */
    @Override
    public String toString() {
      return "understudy";
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new AlignedStream(source, checkpoint);
    }

    /** Refuses {@code spark.read}, in the words of the Python source. */
    @Override
    public Batch toBatch() {
      LoadedSource.load(new CaseInsensitiveStringMap(options), false, true);
      throw new UnsupportedOperationException("understudy reads streams only");
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
      return ColumnarSupportMode.SUPPORTED;
    }
  }
}
