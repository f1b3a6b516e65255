package understudy.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;

/** Requests and replies as JSON. */
final class Json {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}

  static ObjectNode call(String name) {
    return MAPPER.createObjectNode().put("call", name);
  }

  static byte[] write(JsonNode node) {
    try {
      return MAPPER.writeValueAsBytes(node);
    } catch (JsonProcessingException error) {
      throw new UncheckedIOException(error);
    }
  }

  static JsonNode read(byte[] text) {
    try {
      return MAPPER.readTree(text);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
