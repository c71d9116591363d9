# A pool in a container: docker build -t fdt-pool . (after `make dist`), then e.g.
#   docker run --rm -p 7077:7077 -v "$PWD/secrets:/secrets:ro" fdt-pool --workers 4 --mode both --listen 0.0.0.0:7077 \
#       --token-file /secrets/token --tls-cert /secrets/cert.pem --tls-key /secrets/key.pem
# One of the processes' walls needs user namespaces; where the container may not make them, `fdt doctor` says so.
FROM python:3.11-slim-bookworm

# g++ stays: the operations in C++ are compiled anew where the image meets another processor.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*

# Not tensorflow-cpu: fdt needs a package of the name `tensorflow`, and pip would install both, one over the other.
ARG TENSORFLOW="tensorflow==2.18.*"
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir "${TENSORFLOW}" "$(echo /dist/fdt-*.whl)[pool]" && \
    fdt setup

RUN useradd --create-home fdt
USER fdt
RUN python -c "import hfdt.runtime, nfdt.runtime"
EXPOSE 7077
ENTRYPOINT ["fdt", "serve"]
