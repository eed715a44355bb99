# diflow's image: the command line, the allocator, the server, and the programs of the examples.
#
#   docker build -t docker.io/diflow/diflow:0.2.0 .
#
# Behind a mirror or a proxy, pip is told of it as everywhere: --build-arg PIP_INDEX_URL=...
# `make cluster` makes the same image with no engine (cluster/diflowimage.py), and a test compares the two.

# Another base is taken with --build-arg BASE=...; it needs Python 3.11. So the tests build on a Debian of their own.
ARG BASE=python:3.11.14-slim-bookworm
# The packages are installed in a stage of its own, by the pip of this image. It has the same Python as BASE.
ARG INSTALLER=${BASE}

FROM ${INSTALLER} AS packages
# `--build-arg EXTRAS=allocator,controller,server` leaves out what only the programs of the examples need.
ARG EXTRAS=allocator,controller,server,examples
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
WORKDIR /build
COPY pyproject.toml requirements.lock cluster/pythonpackages.py ./
# Compiled here, for containers run as a user who could not keep the result; with hashes that nobody checks, so that the
# files are good whatever their dates become. /opt/diflow is put on Python's path where Python looks first.
RUN site="$(python3 -c 'import site; print(site.getsitepackages()[0])')" && \
    python3 pythonpackages.py pyproject.toml requirements.lock "$EXTRAS" requirements.txt && \
    python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-cache-dir --no-compile \
        --require-hashes --no-deps --only-binary=:all: --target "/install$site" -r requirements.txt && \
    rm -rf "/install$site/bin" && \
    python3 -m compileall -q --invalidation-mode unchecked-hash -s /install -p / "/install$site" && \
    printf '/opt/diflow\n/opt/diflow/examples\n' > "/install$site/diflow.pth" && \
    mkdir -p /install/usr/local/bin && \
    printf '#!/usr/bin/env python3\nfrom diflow.cli import run\n\nrun()\n' > /install/usr/local/bin/diflow && \
    chmod 755 /install/usr/local/bin/diflow

FROM ${INSTALLER} AS code
COPY diflow /code/diflow
COPY examples /code/examples
# A checkout may be for its owner's eyes alone.
RUN chmod -R u=rwX,go=rX /code

FROM ${BASE}
# A user of its own, and Python's own library compiled: some bases come without, and each start would compile it again.
RUN printf 'diflow:x:65532:65532::/opt/diflow:/bin/sh\n' >> /etc/passwd && \
    printf 'diflow:x:65532:\n' >> /etc/group && \
    python3 -m compileall -q --invalidation-mode unchecked-hash -x '(site|dist)-packages|lib2to3/tests' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=packages /install/ /
COPY --from=code /code/ /opt/diflow/
ENV MPLBACKEND=Agg MPLCONFIGDIR=/tmp/matplotlib PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /opt/diflow
USER 65532:65532
CMD ["python3"]
# Last, because they change with each release and each commit.
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="diflow" \
      org.opencontainers.image.description="Elastic, multi-role training jobs (DIJob) as Argo Workflows" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
