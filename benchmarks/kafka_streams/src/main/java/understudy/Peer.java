package understudy;

import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyQueryMetadata;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * One instance of a Kafka Streams application that answers lookups of its table over HTTP.
 *
 * GET /jdk/{key} and /vertx/{key} answer a key of this instance from its store, and forward any other to the instance
 * that is active for it, with java.net.http as Kafka's examples do, or with Vert.x's own client. GET /host/{key} names
 * the port of that instance, GET /ready says whether this one runs.
 */
public final class Peer {
    private static final String STORE = "aircraft";

    private final KafkaStreams streams;
    private final HostInfo self;
    private final StringSerializer serializer = new StringSerializer();
    private final HttpClient jdkClient = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final io.vertx.core.http.HttpClient vertxClient;
    private final Vertx vertx;
    private volatile ReadOnlyKeyValueStore<String, byte[]> store;

    private Peer(String servers, String topic, int port, String stateDir) {
        vertx = Vertx.vertx(new VertxOptions().setPreferNativeTransport(true).setEventLoopPoolSize(1));
        vertxClient = vertx.createHttpClient(
            new HttpClientOptions().setKeepAlive(true).setMaxPoolSize(64).setMaxWaitQueueSize(-1));
        self = new HostInfo("127.0.0.1", port);
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()),
            Materialized.<String, byte[]>as(Stores.persistentKeyValueStore(STORE))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.ByteArray()));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(StreamsConfig.APPLICATION_SERVER_CONFIG, "127.0.0.1:" + port);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, stateDir);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, 1);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put("auto.offset.reset", "earliest");
        streams = new KafkaStreams(builder.build(settings), settings);
    }

    public static void main(String[] arguments) {
        int port = Integer.parseInt(arguments[2]);
        Peer peer = new Peer(arguments[0], arguments[1], port, arguments[3]);
        Runtime.getRuntime().addShutdownHook(new Thread(peer.streams::close));
        peer.streams.start();
        peer.vertx.createHttpServer(new HttpServerOptions().setTcpNoDelay(true))
            .requestHandler(peer::answer)
            .listen(port, "127.0.0.1")
            .onFailure(error -> {
                error.printStackTrace();
                System.exit(1);
            });
    }

    private void answer(HttpServerRequest request) {
        String path = request.path();
        int slash = path.indexOf('/', 1);
        String verb = slash < 0 ? path.substring(1) : path.substring(1, slash);
        String key = slash < 0 ? "" : path.substring(slash + 1);
        try {
            switch (verb) {
                case "ready" -> end(request.response(), isReady() ? 200 : 503, Buffer.buffer("{}"));
                case "host" -> end(request.response(), 200, Buffer.buffer("" + hostOf(key).port()));
                case "jdk", "vertx" -> lookUp(request, verb, key);
                default -> end(request.response(), 404, Buffer.buffer("{}"));
            }
        } catch (RuntimeException error) {
            end(request.response(), 503, Buffer.buffer("{\"error\":\"" + error.getClass().getSimpleName() + "\"}"));
        }
    }

    private void lookUp(HttpServerRequest request, String verb, String key) {
        HostInfo host = hostOf(key);
        HttpServerResponse response = request.response();
        if (host.equals(self)) {
            byte[] value = store().get(key);
            end(response, value == null ? 404 : 200, printed(key, value));
        } else if (verb.equals("vertx")) {
            vertxClient.request(HttpMethod.GET, host.port(), host.host(), request.path())
                .compose(out -> out.send())
                .compose(in -> in.body().onSuccess(body -> end(response, in.statusCode(), body)))
                .onFailure(error -> end(response, 502, Buffer.buffer("{}")));
        } else {
            HttpRequest out =
                HttpRequest.newBuilder(URI.create("http://" + host.host() + ":" + host.port() + request.path())).build();
            var context = vertx.getOrCreateContext();
            jdkClient.sendAsync(out, HttpResponse.BodyHandlers.ofByteArray()).whenComplete((in, error) ->
                context.runOnContext(ignored -> {
                    if (error != null) {
                        end(response, 502, Buffer.buffer("{}"));
                    } else {
                        end(response, in.statusCode(), Buffer.buffer(in.body()));
                    }
                }));
        }
    }

    private HostInfo hostOf(String key) {
        KeyQueryMetadata metadata = streams.queryMetadataForKey(STORE, key, serializer);
        if (metadata == null || metadata.equals(KeyQueryMetadata.NOT_AVAILABLE)) {
            throw new IllegalStateException("rebalancing");
        }
        return metadata.activeHost();
    }

    private ReadOnlyKeyValueStore<String, byte[]> store() {
        if (store == null) {
            store = streams.store(StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
        }
        return store;
    }

    private boolean isReady() {
        return streams.state() == KafkaStreams.State.RUNNING
            && streams.metadataForLocalThreads().stream().anyMatch(thread -> !thread.activeTasks().isEmpty());
    }

    /** What a lookup of ours answers, without lag and position: six numbers of eight bytes are the value. */
    private static Buffer printed(String key, byte[] value) {
        StringBuilder text = new StringBuilder(192).append("{\"store\":\"aircraft\",\"key\":{\"key\":\"").append(key);
        if (value == null) {
            return Buffer.buffer(text.append("\"},\"found\":false,\"value\":null}").toString());
        }
        ByteBuffer numbers = ByteBuffer.wrap(value);
        text.append("\"},\"found\":true,\"value\":{\"count\":").append(numbers.getLong());
        text.append(",\"sum\":").append(numbers.getLong());
        text.append(",\"avg\":{\"sum\":").append(numbers.getDouble()).append(",\"count\":").append(numbers.getLong());
        text.append("},\"min\":").append(numbers.getLong()).append(",\"max\":").append(numbers.getLong());
        return Buffer.buffer(text.append("}}").toString());
    }

    private static void end(HttpServerResponse response, int status, Buffer body) {
        response.setStatusCode(status).putHeader("content-type", "application/json").end(body);
    }
}
