package understudy.spark;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkFiles;

/**
 * The Python processes of one kind in this JVM that wait for work: starting one takes longer than to read or plan a
 * small batch. One that has no work for a minute ends.
 */
final class IdleProcesses {
  private static final int MOST_IDLE = Math.max(2, Runtime.getRuntime().availableProcessors());
  private static final Duration LONGEST_IDLE = Duration.ofSeconds(60);
  private static final Map<Kind, IdleProcesses> ALL = new ConcurrentHashMap<>();

  /**
   * What the processes have in common.
   *
   * @param files the folder from which they import what {@code --py-files} names; each session has its own
   */
  private record Kind(PythonCommand command, String module, String files) {}

  private final Kind kind;
  private final Deque<PythonProcess> waiting = new ArrayDeque<>();

  private IdleProcesses(Kind kind) {
    this.kind = kind;
  }

  static IdleProcesses of(PythonCommand command, String module) {
    return ALL.computeIfAbsent(new Kind(command, module, SparkFiles.getRootDirectory()), IdleProcesses::new);
  }

  /** Return a process that waits for work, or start one. The caller gives it back or closes it. */
  PythonProcess take() {
    synchronized (waiting) {
      while (!waiting.isEmpty()) {
        PythonProcess process = waiting.pop();
        if (process.isAlive()) {
          return process;
        }
        process.close();
      }
    }
    return PythonProcess.start(kind.command(), kind.module(), List.of());
  }

  /** Keep a process that has done its work, or close it. */
  void giveBack(PythonProcess process) {
    keep(process, MOST_IDLE);
  }

  /** Start a process in the background that waits for work, unless one waits. It imports these kinds of inputs. */
  void prepare(List<String> inputs) {
    Daemons.after(
        Duration.ZERO,
        () -> {
          boolean hasSessionEnded = SparkEnv.get() == null;
          if (!hasSessionEnded && !isOneWaiting()) {
            keep(PythonProcess.start(kind.command(), kind.module(), inputs), 1);
          }
        });
  }

  private boolean isOneWaiting() {
    synchronized (waiting) {
      return waiting.stream().anyMatch(PythonProcess::isAlive);
    }
  }

  private void keep(PythonProcess process, int most) {
    synchronized (waiting) {
      waiting.removeIf(each -> !each.isAlive());
      if (waiting.size() < most && process.isAlive()) {
        waiting.push(process);
        long tasks = process.requests();
        Daemons.after(LONGEST_IDLE, () -> closeIfIdle(process, tasks));
        return;
      }
    }
    process.close();
  }

  private void closeIfIdle(PythonProcess process, long tasks) {
    synchronized (waiting) {
      if (process.requests() != tasks || !waiting.remove(process)) {
        return;
      }
    }
    process.close();
  }
}
