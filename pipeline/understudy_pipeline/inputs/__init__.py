"""The inputs: Kafka topics, Redis Streams, files, behind one protocol."""
