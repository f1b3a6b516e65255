package understudy.spark;

import java.io.File;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
  static final String PLANNER = "understudy_pipeline.accelerator.planner";
  static final String READER = "understudy_pipeline.accelerator.reader";

  /** The version of the frames and of what is in them, as in {@code frames.py}. */
  private static final String PROTOCOL = "1";

  static PythonCommand ofDriver() {
    SparkConf conf = SparkEnv.get().conf();
    String named = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    List<String> files = new ArrayList<>();
    for (String file : conf.get("spark.submit.pyFiles", "").split(",")) {
      if (!file.isBlank()) {
        files.add(file);
      }
    }
    return new PythonCommand(conf.get("spark.pyspark.python", named), List.copyOf(files));
  }

  ProcessBuilder builder(String module) {
    ProcessBuilder builder = new ProcessBuilder(python, "-m", module, PROTOCOL);
    Map<String, String> environment = builder.environment();
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
