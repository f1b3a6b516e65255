package understudy

import java.io.{File, FileReader}
import java.math.{BigDecimal => Decimal}
import java.sql.Timestamp
import java.time.{Duration, LocalDate}
import java.util.Properties

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.{Dataset, Encoder, Encoders, SparkSession}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming._
import org.apache.spark.sql.types.StructType

case class Event(k: String, n: Option[Long], d: Option[Double], event: Timestamp)
case class Sky(n: Long, s: Option[String])
case class Weather(
    n: Int, sky: Option[Sky], words: Seq[String], shares: Map[String, Double], price: Decimal, at: Timestamp,
    on: LocalDate, raw: Array[Byte], clear: Boolean, part: Float)
case class Place(place: String, part: Double)
case class Visit(visits: Option[Long], s: String)
case class Spot(d: Option[Double], of: (Option[Long], String))

/** Values, lists and maps of a key that is a text. Spark refuses a key that is null itself. */
class Diary extends StatefulProcessor[String, Event, String] {
  @transient private var weather: ValueState[Weather] = _
  @transient private var seen: ValueState[Long] = _
  @transient private var mood: ValueState[String] = _
  @transient private var trips: ListState[Visit] = _
  @transient private var fading: ListState[String] = _
  @transient private var places: MapState[Place, Visit] = _
  @transient private var rumours: MapState[String, Long] = _
  @transient private var promises: MapState[Int, (Long, String)] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val soon = TTLConfig(Duration.ofMillis(1))
    val late = TTLConfig(Duration.ofDays(30))
    weather = getHandle.getValueState("weather", Encoders.product[Weather], TTLConfig.NONE)
    seen = getHandle.getValueState("seen", Encoders.scalaLong, TTLConfig.NONE)
    mood = getHandle.getValueState("mood", Encoders.STRING, soon)
    trips = getHandle.getListState("trips", Encoders.product[Visit], TTLConfig.NONE)
    fading = getHandle.getListState("fading", Encoders.STRING, late)
    places = getHandle.getMapState("places", Encoders.product[Place], Encoders.product[Visit], TTLConfig.NONE)
    rumours = getHandle.getMapState("rumours", Encoders.STRING, Encoders.scalaLong, soon)
    promises = getHandle.getMapState("promises", Encoders.scalaInt, Encoders.product[(Long, String)], late)
  }

  override def handleInputRows(key: String, rows: Iterator[Event], times: TimerValues): Iterator[String] = {
    val events = rows.toSeq
    val total = (if (seen.exists()) seen.get() else 0L) + events.size
    seen.update(total)
    weather.update(weatherOf(total, events.head.event))
    mood.update(if (total % 2 == 0) "" else "calm")
    if (total > 9) {
      trips.clear()
      places.removeKey(Place("p0", 0.0))
    }
    if (!trips.exists()) trips.put(Array(Visit(Some(-1), ""), Visit(None, null)))
    events.foreach(event => trips.appendValue(Visit(event.n, "x" * (total % 3).toInt)))
    fading.appendList(events.map(event => s"日本語é ${event.n.getOrElse(0L)}").toArray)
    for (at <- 0 until (total % 5).toInt) {
      places.updateValue(Place(s"p$at", at / 2.0), Visit(Some(total), if (at == 0) "first" else null))
      rumours.updateValue(s"p$at", total)
      promises.updateValue((total * 10).toInt + at, (total, s"${events.size}"))
    }
    val now = times.getCurrentProcessingTimeInMs()
    getHandle.registerTimer(now + 1)
    getHandle.registerTimer(now + 86400000L + total)
    Iterator(total.toString)
  }

  override def handleExpiredTimer(key: String, times: TimerValues, expired: ExpiredTimerInfo): Iterator[String] =
    Iterator("expired")

  private def weatherOf(total: Long, at: Timestamp): Weather = Weather(
    total.toInt,
    if (total % 2 == 0) None else Some(Sky(total, if (total % 3 == 0) None else Some("日本語é"))),
    if (total % 4 == 0) null else Seq("a", "", "x" * total.toInt),
    if (total % 3 == 0) Map.empty else Map("half" -> total / 2.0),
    new Decimal("-12345678901234567890.123456789012345678").add(new Decimal(total)),
    at,
    LocalDate.of(1969, 12, 31).plusDays(total),
    if (total % 2 == 0) null else Array[Byte](0, -1, total.toByte),
    total % 2 == 0,
    total / 3.0f)
}

/** Timers in event time, of a key that is a case class with a tuple. */
class Alarms extends StatefulProcessor[Spot, Event, String] {
  @transient private var weather: ValueState[Double] = _
  @transient private var calls: ListState[(Timestamp, Option[Long])] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    weather = getHandle.getValueState("weather", Encoders.scalaDouble, TTLConfig.NONE)
    calls = getHandle.getListState("calls", Encoders.product[(Timestamp, Option[Long])], TTLConfig.NONE)
  }

  override def handleInputRows(key: Spot, rows: Iterator[Event], times: TimerValues): Iterator[String] = {
    rows.foreach { event =>
      weather.update((if (weather.exists()) weather.get() else -0.0) + event.d.getOrElse(0.0))
      calls.appendValue((event.event, event.n))
      getHandle.registerTimer(event.event.getTime + 600000L)
    }
    Iterator("called")
  }

  override def handleExpiredTimer(key: Spot, times: TimerValues, expired: ExpiredTimerInfo): Iterator[String] = {
    if (key.of._1.isEmpty) calls.clear()
    Iterator("expired")
  }
}

/** A number of a key that is a number: no time, no null, no column that has a name of its own. */
class Tally extends StatefulProcessor[Long, Event, String] {
  @transient private var total: ValueState[Int] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    total = getHandle.getValueState("total", Encoders.scalaInt, TTLConfig.NONE)

  override def handleInputRows(key: Long, rows: Iterator[Event], times: TimerValues): Iterator[String] = {
    total.update((if (total.exists()) total.get() else 0) + rows.size)
    Iterator(total.get().toString)
  }
}

/** Runs the query over the files of a folder, a batch for each, once for every checkpoint that is named.
  *
  * Arguments: the folder, the schema of its files, checkpoints. Settings of a query are in `<checkpoint>.properties`.
  */
object TransformJob {
  def main(arguments: Array[String]): Unit = eachCheckpoint(arguments)(run)

  def eachCheckpoint(arguments: Array[String])(run: (SparkSession, String, String, String) => Unit): Unit = {
    val Array(input, schema, checkpoints @ _*) = arguments
    val first = SparkSession.builder().getOrCreate()
    for (checkpoint <- checkpoints) {
      val spark = first.newSession()
      settings(checkpoint).foreach { case (name, value) => spark.conf.set(name, value) }
      run(spark, input, schema, checkpoint)
      StateStore.stop() // the first store that is loaded decides how often maintenance runs
    }
    first.stop()
  }

  private def settings(checkpoint: String): Map[String, String] = {
    val found = new Properties()
    val file = new FileReader(s"$checkpoint.properties")
    try found.load(file) finally file.close()
    found.asScala.toMap
  }

  private def run(spark: SparkSession, input: String, schema: String, checkpoint: String): Unit = {
    import spark.implicits._
    val files = spark.readStream.format("json").schema(schema).option("maxFilesPerTrigger", 1).load(input)
    val events = files.withWatermark("event", "20 minutes").as[Event]
    val diary = events.filter(_.k != null).groupByKey(_.k)
      .transformWithState(new Diary, TimeMode.ProcessingTime(), OutputMode.Append())
    val alarms = events.groupByKey(each => Spot(each.d, (each.n, each.k)))
      .transformWithState(new Alarms, TimeMode.EventTime(), OutputMode.Append())
    val tally = events.groupByKey(_.n.getOrElse(0L) % 5)
      .transformWithState(new Tally, TimeMode.None(), OutputMode.Append())
    diary.union(alarms).union(tally).writeStream
      .format("noop").queryName("scala").outputMode("append").option("checkpointLocation", checkpoint)
      .trigger(Trigger.AvailableNow()).start().awaitTermination()
  }
}
