"""The inputs: Kafka topics and Redis Streams, behind one protocol."""
