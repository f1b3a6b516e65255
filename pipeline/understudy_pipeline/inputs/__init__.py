"""Where records come from: Kafka topics, Redis Streams, files, behind one protocol."""
