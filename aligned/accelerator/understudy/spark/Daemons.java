package understudy.spark;

import java.time.Duration;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** Threads that do not keep the JVM alive. */
final class Daemons {
  private static final ScheduledExecutorService LATER =
      Executors.newSingleThreadScheduledExecutor(task -> thread(task, "understudy-later"));

  private Daemons() {}

  static Thread thread(Runnable task, String name) {
    Thread thread = new Thread(task, name);
    thread.setDaemon(true);
    return thread;
  }

  /** Run a short task later. */
  static void after(Duration pause, Runnable task) {
    LATER.schedule(task, pause.toMillis(), TimeUnit.MILLISECONDS);
  }
}
