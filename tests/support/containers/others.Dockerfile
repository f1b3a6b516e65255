# Stand-ins for the images of others, where these cannot be had: the same programs by Debian's packages, under their names.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS programs
RUN apt-get update \
    && apt-get install -y --no-install-recommends busybox prometheus prometheus-alertmanager redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/bin/redis-server /usr/local/bin/valkey-server \
    && ln -s /usr/bin/redis-cli /usr/local/bin/valkey-cli \
    && ln -s /bin/busybox /usr/local/bin/wget \
    && install -d -o 65534 -g 65534 /prometheus /alertmanager /data
FROM programs AS valkey
WORKDIR /data
FROM programs AS prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
FROM programs AS alertmanager
ENTRYPOINT ["/usr/bin/prometheus-alertmanager"]
