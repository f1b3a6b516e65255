package understudy.spark;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;

/** The idle reading processes of this JVM: starting one takes longer than to read a small batch. */
final class ReaderProcesses {
  private static final int MOST_IDLE = Math.max(2, Runtime.getRuntime().availableProcessors());
  private static final Duration LONGEST_IDLE = Duration.ofSeconds(60);
  private static final Map<PythonCommand, Deque<PythonProcess>> IDLE = new HashMap<>();

  private ReaderProcesses() {}

  /** Return a process that waits for a task. The caller gives it back or closes it. */
  static PythonProcess take(PythonCommand command) {
    synchronized (IDLE) {
      Deque<PythonProcess> waiting = IDLE.computeIfAbsent(command, any -> new ArrayDeque<>());
      while (!waiting.isEmpty()) {
        PythonProcess process = waiting.pop();
        if (process.isAlive()) {
          return process;
        }
        process.close();
      }
    }
    return PythonProcess.start(command, PythonCommand.READER);
  }

  /** Keep a process that has answered its task, or close it. */
  static void giveBack(PythonCommand command, PythonProcess process) {
    synchronized (IDLE) {
      Deque<PythonProcess> waiting = IDLE.get(command);
      if (waiting.size() < MOST_IDLE && process.isAlive()) {
        waiting.push(process);
        long tasks = process.requests();
        Daemons.after(LONGEST_IDLE, () -> closeIfIdle(waiting, process, tasks));
        return;
      }
    }
    process.close();
  }

  private static void closeIfIdle(Deque<PythonProcess> waiting, PythonProcess process, long tasks) {
    synchronized (IDLE) {
      if (process.requests() != tasks || !waiting.remove(process)) {
        return;
      }
    }
    process.close();
  }
}
