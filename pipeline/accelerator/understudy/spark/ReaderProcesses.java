package understudy.spark;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;

/** The idle reading processes of this JVM: starting one takes longer than to read a small batch. */
final class ReaderProcesses {
  private static final int MOST_IDLE = Math.max(2, Runtime.getRuntime().availableProcessors());
  private static final Map<PythonCommand, Deque<PythonProcess>> IDLE = new HashMap<>();

  private ReaderProcesses() {}

  static PythonProcess take(PythonCommand command) {
    synchronized (IDLE) {
      Deque<PythonProcess> waiting = IDLE.getOrDefault(command, new ArrayDeque<>());
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

  static void giveBack(PythonCommand command, PythonProcess process) {
    synchronized (IDLE) {
      Deque<PythonProcess> waiting = IDLE.computeIfAbsent(command, any -> new ArrayDeque<>());
      if (waiting.size() < MOST_IDLE && process.isAlive()) {
        waiting.push(process);
        return;
      }
    }
    process.close();
  }
}
