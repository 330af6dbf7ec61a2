# For clusters without conda. CPU: docker build -t mfulab --build-arg USER_ID=$(id -u) .
# NVIDIA GPUs: docker build -t mfulab --build-arg USER_ID=$(id -u) --build-arg CUDA=cuda . &&
#   docker run --gpus all -v "$PWD/results:/mfulab/results" mfulab
# It runs as the user USER_ID, who must be able to write that folder, and may not change the code or the packages.
# Apptainer reads it by way of docker: apptainer build mfulab.sif docker-daemon://mfulab:latest
# The digest is the one that other public projects give for this tag; the registry was not asked.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG CUDA=
ARG USER_ID=1000
RUN apt-get update && apt-get install -y --no-install-recommends git make gcc g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /mfulab
COPY . .
RUN PYTHONDONTWRITEBYTECODE=1 make install PYTHON=python CUDA=$CUDA EXTRAS=slurm && rm -rf .venv
RUN useradd --create-home --uid $USER_ID mfulab && mkdir -p reports .snakemake && chown mfulab . results reports .snakemake
USER mfulab
ENTRYPOINT ["snakemake", "--cores", "1"]
CMD ["report"]
