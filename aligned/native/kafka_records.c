/* Takes records out of librdkafka straight into columns, without a Python object for each.
 *
 * It is a plugin of librdkafka (`plugin.library.paths`): so it gets the handle of a consumer that confluent-kafka has
 * made, and the functions of the very librdkafka that this consumer is of. Partitions are forwarded to a queue of its
 * own, in which there are only records and errors of partitions. Callbacks stay in the consumer's queue, which Python
 * polls.
 *
 * One thread at a time may use a reader. Every function that takes a group or an index checks it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#ifdef SOURCE_MARK
EXPORT const char understudy_source[] = SOURCE_MARK; /* by it tools/build_native.py knows the source */
#endif

/* The part of librdkafka's public API that is used. */
typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct {
  int err;
  rd_kafka_topic_t *topic;
  int32_t partition;
  void *value;
  size_t value_length;
  void *key;
  size_t key_length;
  int64_t offset;
  void *private;
} message_t;

typedef int on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);

static struct {
  int (*add_on_new)(rd_kafka_conf_t *, const char *, on_new_t *, void *);
  rd_kafka_queue_t *(*queue_new)(rd_kafka_t *);
  rd_kafka_queue_t *(*queue_of_partition)(rd_kafka_t *, const char *, int32_t);
  void (*queue_forward)(rd_kafka_queue_t *, rd_kafka_queue_t *);
  void (*queue_destroy)(rd_kafka_queue_t *);
  ptrdiff_t (*consume)(rd_kafka_queue_t *, int, message_t **, size_t);
  void (*destroy)(message_t *);
  int64_t (*timestamp)(const message_t *, int *);
  const char *(*topic_name)(const rd_kafka_topic_t *);
  int (*headers)(const message_t *, rd_kafka_headers_t **);
  int (*header)(const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *);
} rd;

static const struct {
  const char *name;
  void *place;
} FUNCTIONS[] = {
    {"rd_kafka_conf_interceptor_add_on_new", &rd.add_on_new},
    {"rd_kafka_queue_new", &rd.queue_new},
    {"rd_kafka_queue_get_partition", &rd.queue_of_partition},
    {"rd_kafka_queue_forward", &rd.queue_forward},
    {"rd_kafka_queue_destroy", &rd.queue_destroy},
    {"rd_kafka_consume_batch_queue", &rd.consume},
    {"rd_kafka_message_destroy", &rd.destroy},
    {"rd_kafka_message_timestamp", &rd.timestamp},
    {"rd_kafka_topic_name", &rd.topic_name},
    {"rd_kafka_message_headers", &rd.headers},
    {"rd_kafka_header_get_all", &rd.header},
};

/* Records of one partition among those that were taken, in log order. Python reads this. */
typedef struct {
  const char *topic;
  int64_t key_bytes, value_bytes;
  int32_t partition;
  int32_t count;
  int32_t null_keys, null_values;
  int32_t has_headers;
  int32_t first, last; /* indices of messages, linked by `next` */
} group_t;

/* An event: an error of a partition, or its end. Python reads this. */
typedef struct {
  const char *topic, *text;
  int64_t text_length, offset;
  int32_t partition, error;
} event_t;

/* The columns of some groups, which Python allocates. Offsets have one entry more than there are records. */
typedef struct {
  int64_t *offsets, *timestamps, *header_bytes;
  int32_t *timestamp_types, *key_offsets, *value_offsets;
  uint8_t *keys, *values, *key_validity, *value_validity;
} columns_t;

typedef struct {
  rd_kafka_t *consumer;
  rd_kafka_queue_t *queue;
  rd_kafka_queue_t **partitions; /* the queues that are forwarded */
  int32_t partitions_count;
  int32_t most, taken, groups_count, events_count;
  message_t **messages;
  int32_t *next;
  group_t *groups;
  event_t *events;
} reader_t;

static __thread rd_kafka_t *newest;

static int note_newest(rd_kafka_t *consumer, const rd_kafka_conf_t *conf, void *opaque, char *text, size_t length) {
  (void)conf, (void)opaque, (void)text, (void)length;
  newest = consumer;
  return 0;
}

/* librdkafka calls this when the property is set. If a function is missing, the consumer works without us. */
EXPORT int conf_init(rd_kafka_conf_t *conf, void **opaque, char *text, size_t length) {
  (void)opaque, (void)text, (void)length;
  Dl_info caller;
  if (!dladdr(__builtin_return_address(0), &caller)) return 0;
  void *library = dlopen(caller.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == NULL) return 0;
  for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
    void *found = dlsym(library, FUNCTIONS[i].name);
    if (found == NULL) return 0;
    memcpy(FUNCTIONS[i].place, &found, sizeof found);
  }
  rd.add_on_new(conf, "understudy", note_newest, NULL);
  return 0;
}

EXPORT void understudy_close(reader_t *reader);

/* Drop what is taken and not copied. */
static void drop(reader_t *reader) {
  for (int32_t i = 0; i < reader->taken; i++)
    if (reader->messages[i] != NULL) rd.destroy(reader->messages[i]);
  reader->taken = reader->groups_count = reader->events_count = 0;
}

/* Return a reader of the consumer that this thread has made last, for so many records at a time; or NULL. */
EXPORT reader_t *understudy_open(int32_t most) {
  rd_kafka_t *consumer = newest;
  newest = NULL;
  if (consumer == NULL || most < 1) return NULL;
  reader_t *reader = calloc(1, sizeof *reader);
  if (reader == NULL) return NULL;
  reader->consumer = consumer;
  reader->most = most;
  reader->messages = calloc(most, sizeof *reader->messages);
  reader->next = calloc(most, sizeof *reader->next);
  reader->groups = calloc(most, sizeof *reader->groups);
  reader->events = calloc(most, sizeof *reader->events);
  reader->queue = rd.queue_new(consumer);
  if (reader->messages && reader->next && reader->groups && reader->events && reader->queue) return reader;
  understudy_close(reader);
  return NULL;
}

/* Take of no partition any more. */
EXPORT void understudy_forget(reader_t *reader) {
  for (int32_t i = 0; i < reader->partitions_count; i++) rd.queue_destroy(reader->partitions[i]);
  free(reader->partitions);
  reader->partitions = NULL;
  reader->partitions_count = 0;
}

/* Close the reader, before its consumer is closed. */
EXPORT void understudy_close(reader_t *reader) {
  drop(reader);
  understudy_forget(reader);
  if (reader->queue != NULL) rd.queue_destroy(reader->queue);
  free(reader->messages);
  free(reader->next);
  free(reader->groups);
  free(reader->events);
  free(reader);
}

/* Take what comes of this partition from now on. Call it before the partition is assigned. Returns 0 if it fails. */
EXPORT int understudy_forward(reader_t *reader, const char *topic, int32_t partition) {
  size_t count = (size_t)reader->partitions_count;
  rd_kafka_queue_t **partitions = realloc(reader->partitions, (count + 1) * sizeof *partitions);
  if (partitions == NULL) return 0;
  reader->partitions = partitions;
  partitions[count] = rd.queue_of_partition(reader->consumer, topic, partition);
  if (partitions[count] == NULL) return 0;
  rd.queue_forward(partitions[count], reader->queue);
  reader->partitions_count++;
  return 1;
}

static int64_t bytes_of_headers(const message_t *message, int *has_headers) {
  rd_kafka_headers_t *headers;
  if (rd.headers(message, &headers) != 0) return 0;
  int64_t bytes = 0;
  const char *name;
  const void *value;
  size_t length;
  for (size_t i = 0; rd.header(headers, i, &name, &value, &length) == 0; i++)
    bytes += strlen(name) + (value == NULL ? 0 : length);
  *has_headers = 1;
  return bytes;
}

static int is_of(const group_t *group, const char *topic, int32_t partition) {
  return group->partition == partition && (group->topic == topic || strcmp(group->topic, topic) == 0);
}

static int has_room(const group_t *group, const message_t *message, int64_t most_bytes) {
  return group->key_bytes + (int64_t)message->key_length <= most_bytes &&
         group->value_bytes + (int64_t)message->value_length <= most_bytes;
}

/* Return the group for a message: that of the message before, the newest of its partition, or a new one. */
static group_t *group_of(reader_t *reader, group_t *before, const message_t *message, int64_t most_bytes) {
  const char *topic = rd.topic_name(message->topic);
  group_t *group = before != NULL && is_of(before, topic, message->partition) ? before : NULL;
  for (int32_t i = reader->groups_count; group == NULL && i-- > 0;)
    if (is_of(&reader->groups[i], topic, message->partition)) group = &reader->groups[i];
  if (group != NULL && has_room(group, message, most_bytes)) return group;
  group = &reader->groups[reader->groups_count++];
  memset(group, 0, sizeof *group);
  group->topic = topic;
  group->partition = message->partition;
  group->first = group->last = -1;
  return group;
}

static void add_event(reader_t *reader, const message_t *message) {
  event_t *event = &reader->events[reader->events_count++];
  event->topic = message->topic == NULL ? NULL : rd.topic_name(message->topic);
  event->text = message->value;
  event->text_length = message->value == NULL ? 0 : message->value_length;
  event->offset = message->offset;
  event->partition = message->partition;
  event->error = message->err;
}

static void add_record(group_t *group, reader_t *reader, int32_t index) {
  const message_t *message = reader->messages[index];
  if (group->first < 0)
    group->first = index;
  else
    reader->next[group->last] = index;
  group->last = index;
  reader->next[index] = -1;
  group->count++;
  if (message->key == NULL) group->null_keys++; else group->key_bytes += message->key_length;
  if (message->value == NULL) group->null_values++; else group->value_bytes += message->value_length;
  rd_kafka_headers_t *headers;
  if (!group->has_headers && rd.headers(message, &headers) == 0) group->has_headers = 1;
}

/* Take up to `count` records and events; wait for the first only. Returns their number, or -1 after an error.
 *
 * A group has at most `most_bytes` of keys and of values, unless its first record alone has more. Groups and events are
 * valid until the next call, texts of events too.
 */
EXPORT int32_t understudy_take(reader_t *reader, int32_t count, int32_t wait_ms, int64_t most_bytes) {
  drop(reader);
  if (count < 1) return 0;
  if (count > reader->most) count = reader->most;
  /* Again, as librdkafka ends a forwarding some time after a partition was assigned anew. What came since moves, too. */
  for (int32_t i = 0; i < reader->partitions_count; i++) rd.queue_forward(reader->partitions[i], reader->queue);
  ptrdiff_t taken = rd.consume(reader->queue, wait_ms, reader->messages, 1);
  if (taken == 1 && count > 1) {
    ptrdiff_t more = rd.consume(reader->queue, 0, reader->messages + 1, count - 1);
    if (more > 0) taken += more;
  }
  if (taken < 0) return -1;
  reader->taken = (int32_t)taken;
  group_t *group = NULL;
  for (int32_t i = 0; i < reader->taken; i++) {
    const message_t *message = reader->messages[i];
    if (message->err != 0) {
      add_event(reader, message);
    } else {
      group = group_of(reader, group, message, most_bytes);
      add_record(group, reader, i);
    }
  }
  return reader->taken;
}

EXPORT int32_t understudy_groups(const reader_t *reader, const group_t **groups) {
  *groups = reader->groups;
  return reader->groups_count;
}

EXPORT int32_t understudy_events(const reader_t *reader, const event_t **events) {
  *events = reader->events;
  return reader->events_count;
}

static int64_t copy(uint8_t *column, int64_t at, const void *bytes, size_t length) {
  if (length > 0) memcpy(column + at, bytes, length);
  return at + (int64_t)length;
}

/* Copy a group behind the records, keys and values that are in the columns. Returns the records that are there then. */
static int32_t fill_group(reader_t *reader, group_t *group, const columns_t *to, int32_t at) {
  int64_t keys = to->key_offsets[at], values = to->value_offsets[at];
  for (int32_t index = group->first; index >= 0; index = reader->next[index], at++) {
    message_t *message = reader->messages[index];
    int type = 0;
    to->offsets[at] = message->offset;
    to->timestamps[at] = rd.timestamp(message, &type);
    to->timestamp_types[at] = type - 1; /* librdkafka's types are greater by one than those of Kafka's Java client */
    to->key_offsets[at] = (int32_t)keys;
    to->value_offsets[at] = (int32_t)values;
    if (message->key != NULL) {
      keys = copy(to->keys, keys, message->key, message->key_length);
      if (to->key_validity != NULL) to->key_validity[at >> 3] |= (uint8_t)(1 << (at & 7));
    }
    if (message->value != NULL) {
      values = copy(to->values, values, message->value, message->value_length);
      if (to->value_validity != NULL) to->value_validity[at >> 3] |= (uint8_t)(1 << (at & 7));
    }
    if (to->header_bytes != NULL) {
      int has_headers = 0;
      to->header_bytes[at] = bytes_of_headers(message, &has_headers);
    }
    rd.destroy(message);
    reader->messages[index] = NULL;
  }
  to->key_offsets[at] = (int32_t)keys;
  to->value_offsets[at] = (int32_t)values;
  group->first = -1;
  return at;
}

/* Copy the groups from `first` to before `end` into columns, one behind the other, and give their messages back to
 * librdkafka. Returns the records that were copied.
 *
 * Bits of validity must be clear; a column without nulls needs none, nor one without headers `header_bytes`.
 */
EXPORT int32_t understudy_fill(reader_t *reader, int32_t first, int32_t end, const columns_t *to) {
  if (first < 0 || first > end || end > reader->groups_count) return -1;
  int32_t at = 0;
  to->key_offsets[0] = to->value_offsets[0] = 0;
  for (int32_t i = first; i < end; i++) at = fill_group(reader, &reader->groups[i], to, at);
  return at;
}
