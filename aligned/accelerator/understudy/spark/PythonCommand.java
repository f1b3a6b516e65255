package understudy.spark;

import java.io.File;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkFiles;

/**
 * How to start Python, on the driver and on executors: as Spark starts it for Python sources.
 *
 * @param python the interpreter
 * @param files the names of the files of {@code --py-files}, which Spark copies to every executor
 */
record PythonCommand(String python, List<String> files) implements Serializable {
  static final String PLANNER = "understudy_aligned.accelerator.planner";
  static final String READER = "understudy_aligned.accelerator.reader";

  /** The version of the frames and of what is in them, as in {@code serving.py}. */
  private static final String PROTOCOL = "4";

  /** Return the Python of the driver. */
  static PythonCommand ofDriver() {
    SparkConf conf = SparkEnv.get().conf();
    String named = first(conf.get("spark.pyspark.driver.python", null), System.getenv("PYSPARK_DRIVER_PYTHON"));
    // It may be a notebook's server instead of a Python.
    boolean isPython = named != null && new File(named).getName().startsWith("python");
    return isPython ? new PythonCommand(named, files(conf)) : ofExecutors();
  }

  /** Return the Python of executors. */
  static PythonCommand ofExecutors() {
    SparkConf conf = SparkEnv.get().conf();
    String named = first(conf.get("spark.pyspark.python", null), System.getenv("PYSPARK_PYTHON"));
    return new PythonCommand(first(named, "python3"), files(conf));
  }

  private static String first(String one, String other) {
    return one == null || one.isBlank() ? other : one;
  }

  private static List<String> files(SparkConf conf) {
    return Stream.of(conf.get("spark.submit.pyFiles", "").split(",")).filter(name -> !name.isBlank()).toList();
  }

  ProcessBuilder builder(String module, List<String> arguments) {
    ProcessBuilder builder = new ProcessBuilder(python, "-m", module, PROTOCOL);
    builder.command().addAll(arguments);
    Map<String, String> environment = builder.environment();
    // NumPy's linear algebra is not used here. Its threads would cost a third of NumPy's start.
    environment.putIfAbsent("OPENBLAS_NUM_THREADS", "1");
    List<String> path = new ArrayList<>();
    for (String file : files) {
      // Where Spark copied it on an executor; else the place that was named, which is on the driver.
      File copied = new File(SparkFiles.getRootDirectory(), new File(file).getName());
      path.add(copied.exists() ? copied.getPath() : file);
    }
    path.add(SparkFiles.getRootDirectory());
    String before = environment.get("PYTHONPATH");
    if (before != null && !before.isEmpty()) {
      path.add(before);
    }
    environment.put("PYTHONPATH", String.join(File.pathSeparator, path));
    return builder;
  }
}
