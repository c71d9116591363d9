# A pool in a container: docker build -t fdt-pool . (after `make dist`), then e.g.
#   docker run --rm -p 7077:7077 -v "$PWD/secrets:/secrets:ro" fdt-pool --workers 4 --mode both --listen 0.0.0.0:7077 \
#       --token-file /secrets/token --tls-cert /secrets/cert.pem --tls-key /secrets/key.pem
# One of the processes' walls needs user namespaces; where the container may not make them, `fdt doctor` says so.
# To pin the base image too, name its digest, which `docker buildx imagetools inspect python:3.11-slim-bookworm` prints:
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:... -t fdt-pool .
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

# g++ stays: the operations in C++ are compiled anew where the image meets another processor than its builder's.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*

# Packages by their hashes, which `make dist` takes from uv.lock; ours is the wheel beside them.
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --require-hashes --requirement /dist/requirements.txt && \
    pip install --no-cache-dir --no-deps --no-index /dist/fdt-*.whl && \
    XDG_CACHE_HOME=/tmp/cache fdt setup && rm -r /tmp/cache

RUN useradd --create-home fdt
USER fdt
EXPOSE 7077
ENTRYPOINT ["fdt", "serve"]
