package understudy

import java.io.File
import java.nio.file.Files

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{classic, SparkSession}
import org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
import org.apache.spark.sql.functions.{col, from_json}
import org.apache.spark.sql.streaming._
import org.apache.spark.sql.types.StructType

/** Runs the first operator of `TransformJob` alone in Real-Time Mode, which Spark has since 4.1. The arguments are the
  * same. Each file's rows are committed before those of the next are added.
  */
object RealTimeJob {
  private val BatchDuration = "spark.sql.streaming.realTimeMode.minBatchDuration"

  def main(arguments: Array[String]): Unit = TransformJob.eachCheckpoint(arguments)(run)

  private def run(spark: SparkSession, input: String, schema: String, checkpoint: String): Unit = {
    import spark.implicits._
    val stream = LowLatencyMemoryStream.singlePartition[String](spark.asInstanceOf[classic.SparkSession])
    val read = from_json(col("value"), StructType.fromDDL(schema), Map("allowNonNumericNumbers" -> "true"))
    val events = stream.toDF().select(read.as("row")).select("row.*").as[Event]
    val query = events.filter(_.k != null).groupByKey(_.k)
      .transformWithState(new Diary, TimeMode.ProcessingTime(), OutputMode.Update())
      .writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
      .trigger(Trigger.RealTime(s"${spark.conf.get(BatchDuration)} milliseconds")).start()
    var added = 0L
    for (file <- new File(input).listFiles().filter(_.isFile).sortBy(_.getName) if !file.getName.startsWith(".")) {
      val lines = Files.readAllLines(file.toPath).asScala.toSeq
      stream.addData(lines)
      added += lines.size
      while (query.isActive && committed(checkpoint) < added) Thread.sleep(50)
      query.exception.foreach(throw _)
    }
    query.stop()
  }

  /** The number of rows that the last committed batch and those before it read. */
  private def committed(checkpoint: String): Long = {
    val done = Option(new File(checkpoint, "commits").list()).toSeq.flatten.filter(_.forall(_.isDigit)).map(_.toLong)
    if (done.isEmpty) 0L
    else {
      val offsets = Files.readAllLines(new File(checkpoint, s"offsets/${done.max}").toPath).asScala.last
      "\\d+(?=[,}])".r.findAllIn(offsets).map(_.toLong).sum
    }
  }
}
