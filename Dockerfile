# For clusters without conda. CPU: docker build -t mfulab .
# NVIDIA GPUs: docker build -t mfulab --build-arg CUDA=cuda . && docker run --gpus all -v "$PWD/results:/mfulab/results" mfulab
# Apptainer reads it by way of docker: apptainer build mfulab.sif docker-daemon://mfulab:latest
FROM python:3.11-slim-bookworm
ARG CUDA=
RUN apt-get update && apt-get install -y --no-install-recommends git make gcc g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /mfulab
COPY . .
RUN PYTHONDONTWRITEBYTECODE=1 make install PYTHON=python CUDA=$CUDA EXTRAS=slurm
ENTRYPOINT ["snakemake", "--cores", "1"]
CMD ["report"]
