# Runs the demo, and writes its report to demo/runs/report.html:
#     docker build -t antiphon . && mkdir -p demo
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/demo:/antiphon/demo" antiphon
# With a GPU, add --gpus all. Another command follows the name of the image: docker run --rm antiphon recipes.
#
# The default takes PyTorch's ordinary build, which runs on GPUs and on CPUs. For a smaller image without CUDA,
# pass the address of PyTorch's CPU packages: docker build --build-arg TORCH_INDEX=ADDRESS -t antiphon:cpu .
#
# hadolint 2.15.1 finds no fault. The image itself has not been built yet: no builder was at hand.
FROM python:3.12-slim

ARG TORCH_INDEX=""
ARG EXTRAS="demo,encoder,federation"
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY antiphon antiphon
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

# The folder can be written by every user, because files in a mounted folder belong to the user of --user.
RUN useradd --no-create-home --uid 1000 antiphon && mkdir --mode 1777 /antiphon
ENV HOME=/tmp
USER 1000
WORKDIR /antiphon
ENTRYPOINT ["antiphon"]
CMD ["demo"]
