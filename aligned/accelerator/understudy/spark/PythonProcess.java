package understudy.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A Python process that answers one request after the other, by frames on its pipes ({@code serving.py}).
 *
 * <p>It ends when this end of its pipes is closed, so it outlives neither {@link #close} nor this JVM.
 */
final class PythonProcess implements AutoCloseable {
  /** A frame: its kind and what is in it. */
  record Frame(char kind, byte[] payload) {}

  static final char REQUEST = 'Q';
  static final char DATA = 'D';
  static final char REPLY = 'R';
  static final char ERROR = 'E';
  private static final char BEAT = 'B';
  private static final char END = 'X';

  /** Longest time without a frame. A process that works sends a beat each second. */
  private static final Duration SILENCE = Duration.ofSeconds(120);

  private static final int QUEUED_FRAMES = 4;
  private static final int MAX_FRAME_BYTES = 1 << 30;
  private static final int LAST_LINES = 20;
  private static final Duration LAST_WORDS = Duration.ofSeconds(2);
  private static final String OTHER_PYTHON =
      "Set PYSPARK_PYTHON or spark.pyspark.python to a Python in which understudy is installed";

  private final String module;
  private final String command;
  private final Process process;
  private final DataOutputStream requests;
  private final BlockingQueue<Frame> frames = new ArrayBlockingQueue<>(QUEUED_FRAMES);
  private final ArrayDeque<String> lastLines = new ArrayDeque<>();
  private final Thread logging;
  private volatile long heardNanos = System.nanoTime();
  private volatile boolean hasAnswered;
  private volatile boolean isClosed;
  private volatile long requestCount;

  private PythonProcess(String module, String command, Process process) {
    this.module = module;
    this.command = command;
    this.process = process;
    this.requests = new DataOutputStream(process.getOutputStream());
    this.logging = Daemons.thread(this::log, "understudy-log");
    logging.start();
    Daemons.thread(this::receive, "understudy-frames").start();
  }

  static PythonProcess start(PythonCommand command, String module, List<String> arguments) {
    ProcessBuilder builder = command.builder(module, arguments);
    try {
      return new PythonProcess(module, String.join(" ", builder.command()), builder.start());
    } catch (IOException error) {
      throw new PythonException(
          "Python cannot be started as '" + command.python() + "': " + error.getMessage() + ". " + OTHER_PYTHON, error);
    }
  }

  /** Return how many requests it has had. */
  long requests() {
    return requestCount;
  }

  boolean isAlive() {
    return !isClosed && process.isAlive();
  }

  /** Send a call and return its reply. Throws PythonException for an error, and if the process ends or is silent. */
  JsonNode ask(JsonNode call) {
    send(Json.write(call));
    Frame frame = next();
    if (frame.kind() != REPLY) {
      throw new PythonException("the process of " + module + " sent '" + frame.kind() + "' instead of a reply");
    }
    return Json.read(frame.payload());
  }

  /** Send a request whose answer {@link #next} brings. */
  void send(byte[] request) {
    try {
      heardNanos = System.nanoTime();
      requestCount++;
      requests.writeByte(REQUEST);
      requests.writeInt(request.length);
      requests.write(request);
      requests.flush();
    } catch (IOException error) {
      throw ended(error);
    }
  }

  /** Return the next frame: data, or the reply. Throws PythonException like {@link #ask}. Can be interrupted. */
  Frame next() {
    try {
      while (true) {
        Frame frame = frames.poll(1, TimeUnit.SECONDS);
        if (frame == null) {
          checkSilence();
        } else if (frame.kind() == ERROR) {
          throw new PythonException(new String(frame.payload(), StandardCharsets.UTF_8));
        } else if (frame.kind() == END) {
          throw ended(null);
        } else {
          return frame;
        }
      }
    } catch (InterruptedException interruption) {
      // Spark stops the query or kills the task. What the process answers now would be taken for another answer.
      close();
      throw Errors.unchecked(interruption);
    }
  }

  /** End the process, without waiting for it. May be called again, by any thread. */
  @Override
  public void close() {
    isClosed = true;
    try {
      process.getOutputStream().close();
    } catch (IOException error) {
      process.destroy();
    }
    frames.clear(); // The receiving thread may wait for room.
  }

  private void checkSilence() {
    if (System.nanoTime() - heardNanos > SILENCE.toNanos()) {
      process.destroyForcibly();
      throw new PythonException(
          "the process of " + module + " was silent for " + SILENCE.toSeconds() + " s, so it was ended. The machine is "
              + "overloaded, or the process was stopped: start the query again");
    }
  }

  private PythonException ended(IOException cause) {
    String how = isClosed ? "was closed" : "ended";
    try {
      process.waitFor(LAST_WORDS.toSeconds(), TimeUnit.SECONDS);
      logging.join(LAST_WORDS.toMillis());
      how += process.isAlive() || isClosed ? "" : " with exit code " + process.exitValue();
    } catch (InterruptedException interruption) {
      Thread.currentThread().interrupt();
    }
    if (!hasAnswered && !isClosed) {
      how += " before it answered. It was started as '" + command + "'. " + OTHER_PYTHON;
    }
    synchronized (lastLines) {
      String said = lastLines.isEmpty() ? "" : ":\n" + String.join("\n", lastLines);
      return new PythonException("the process of " + module + " " + how + said, cause);
    }
  }

  private void receive() {
    try (DataInputStream in = new DataInputStream(process.getInputStream())) {
      while (true) {
        char kind = (char) in.readUnsignedByte();
        int size = in.readInt();
        if (size < 0 || size > MAX_FRAME_BYTES) {
          throw new IOException("a frame of " + size + " bytes");
        }
        byte[] payload = in.readNBytes(size);
        heardNanos = System.nanoTime();
        hasAnswered = true;
        if (kind != BEAT && !offer(new Frame(kind, payload))) {
          return;
        }
      }
    } catch (IOException end) {
      offer(new Frame(END, new byte[0]));
    }
  }

  private boolean offer(Frame frame) {
    try {
      while (!isClosed) {
        if (frames.offer(frame, 1, TimeUnit.SECONDS)) {
          return true;
        }
      }
    } catch (InterruptedException never) {
      Thread.currentThread().interrupt();
    }
    return false;
  }

  /** Copies what the process logs into this JVM's log, and keeps the last lines for an error. */
  private void log() {
    try (BufferedReader lines =
        new BufferedReader(new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        System.err.println(line);
        synchronized (lastLines) {
          lastLines.addLast(line);
          if (lastLines.size() > LAST_LINES) {
            lastLines.removeFirst();
          }
        }
      }
    } catch (IOException end) {
      // The process has ended.
    }
  }
}
