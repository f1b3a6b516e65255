package understudy.spark;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkFiles;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;

/**
 * The Python processes of one kind in this JVM that wait for work: starting one takes longer than to read or plan a
 * small batch. One that has no work for a while ends. Planners end with their session, too.
 */
final class IdleProcesses {
  private static final String PLANNER_IDLE_TIMEOUT = "spark.understudy.plannerIdleTimeout";
  private static final String PLANNER_IDLE = "10min";
  private static final Duration READER_IDLE = Duration.ofSeconds(60);
  private static final int MOST_IDLE = Math.max(2, Runtime.getRuntime().availableProcessors());
  private static final Map<Kind, IdleProcesses> ALL = new ConcurrentHashMap<>();

  /**
   * What the processes have in common.
   *
   * @param idle the longest time without work
   * @param files the folder from which they import what {@code --py-files} names; each session has its own
   */
  private record Kind(PythonCommand command, String module, Duration idle, String files) {}

  private final Kind kind;
  private final Deque<PythonProcess> waiting = new ArrayDeque<>();
  private boolean hasSessionEnded;

  private IdleProcesses(Kind kind) {
    this.kind = kind;
  }

  /** Return the planners of this driver. Throws NumberFormatException if the setting of their idle time is no time. */
  static IdleProcesses planners() {
    Duration idle = Duration.ofSeconds(SparkEnv.get().conf().getTimeAsSeconds(PLANNER_IDLE_TIMEOUT, PLANNER_IDLE));
    PythonCommand command = PythonCommand.ofDriver();
    Kind kind = new Kind(command, PythonCommand.PLANNER, idle, SparkFiles.getRootDirectory());
    return ALL.computeIfAbsent(kind, IdleProcesses::endingWithSession);
  }

  /** Return the processes of this executor that read tasks. */
  static IdleProcesses readers(PythonCommand command) {
    Kind kind = new Kind(command, PythonCommand.READER, READER_IDLE, SparkFiles.getRootDirectory());
    return ALL.computeIfAbsent(kind, IdleProcesses::new);
  }

  private static IdleProcesses endingWithSession(Kind kind) {
    IdleProcesses planners = new IdleProcesses(kind);
    SparkContext.getOrCreate()
        .addSparkListener(
            new SparkListener() {
              @Override
              public void onApplicationEnd(SparkListenerApplicationEnd end) {
                planners.closeAll();
              }
            });
    return planners;
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
          if (isOneWanted()) {
            keep(PythonProcess.start(kind.command(), kind.module(), inputs), 1);
          }
        });
  }

  private boolean isOneWanted() {
    synchronized (waiting) {
      return kind.idle().toSeconds() > 0 && !hasSessionEnded && waiting.stream().noneMatch(PythonProcess::isAlive);
    }
  }

  private void keep(PythonProcess process, int most) {
    synchronized (waiting) {
      waiting.removeIf(each -> !each.isAlive());
      if (waiting.size() < most && process.isAlive() && !hasSessionEnded) {
        waiting.push(process);
        long tasks = process.requests();
        Daemons.after(kind.idle(), () -> closeIfIdle(process, tasks));
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

  private void closeAll() {
    ALL.remove(kind);
    synchronized (waiting) {
      hasSessionEnded = true;
      waiting.forEach(PythonProcess::close);
      waiting.clear();
    }
  }
}
