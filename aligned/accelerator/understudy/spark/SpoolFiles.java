package understudy.spark;

import java.util.HashMap;
import java.util.Map;

/**
 * The spool files that tasks of this JVM may read, with the number of their readers. A file that no reader has, and that
 * none can open any more, may be written again: memory that the kernel has cleared once is cheaper than new memory.
 */
final class SpoolFiles {
  private static final Map<String, Integer> READERS = new HashMap<>();

  private SpoolFiles() {}

  /** Let readers open a file. */
  static synchronized void admit(String path) {
    READERS.putIfAbsent(path, 0);
  }

  /** Count a reader. Returns false if the file may not be opened any more. */
  static synchronized boolean enter(String path) {
    return READERS.computeIfPresent(path, (name, readers) -> readers + 1) != null;
  }

  /** Count a reader less. */
  static synchronized void leave(String path) {
    READERS.computeIfPresent(path, (name, readers) -> readers - 1);
  }

  /** Let no reader open the file from now on, unless one has it. Returns whether there is none. */
  static synchronized boolean retire(String path) {
    return READERS.remove(path, 0);
  }

  /** Let no reader open the file from now on. */
  static synchronized void forget(String path) {
    READERS.remove(path);
  }
}
