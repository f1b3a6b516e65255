package understudy.spark;

import java.io.IOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.ForeignAllocation;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.storage.StorageUtils;

/**
 * The mapped memory of one record batch of a file: a read would copy it into memory that the kernel clears first. It is
 * unmapped when the last buffer of the batch is released.
 */
final class MappedBatch extends ForeignAllocation {
  /** A marker and the length of the metadata. */
  private static final int PREFIX = 8;

  private final MappedByteBuffer mapped;

  private MappedBatch(MappedByteBuffer mapped, int metadata) {
    super(mapped.capacity() - metadata, MemoryUtil.getByteBufferAddress(mapped) + metadata);
    this.mapped = mapped;
  }

  /** Whether one mapping can hold it. */
  static boolean fits(ArrowBlock block) {
    return block.getMetadataLength() + block.getBodyLength() <= Integer.MAX_VALUE;
  }

  /** Map a record batch. Throws if the file ends before it does. */
  static ArrowRecordBatch of(FileChannel file, ArrowBlock block, BufferAllocator memory) throws IOException {
    int metadata = block.getMetadataLength();
    long size = metadata + block.getBodyLength();
    if (block.getOffset() + size > file.size()) {
      throw new IOException("the spool file ends within a record batch");
    }
    MappedByteBuffer mapped = file.map(FileChannel.MapMode.READ_ONLY, block.getOffset(), size);
    Message message = Message.getRootAsMessage(mapped.slice(PREFIX, metadata - PREFIX).order(ByteOrder.LITTLE_ENDIAN));
    ArrowBuf body = memory.wrapForeignAllocation(new MappedBatch(mapped, metadata));
    // It releases its argument: the buffers of the batch hold the memory.
    return MessageSerializer.deserializeRecordBatch(message, body);
  }

  @Override
  protected void release0() {
    StorageUtils.dispose(mapped);
  }
}
