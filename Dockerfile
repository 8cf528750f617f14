# Runs the demo: docker build -t antiphon . && docker run --rm -v "$PWD/demo:/home/antiphon/demo" antiphon
# With a GPU:    docker run --rm --gpus all -v "$PWD/demo:/home/antiphon/demo" antiphon
#
# The default takes PyTorch's ordinary build, which runs on GPUs and on CPUs. For a smaller image without CUDA,
# pass the address of PyTorch's CPU packages: docker build --build-arg TORCH_INDEX=ADDRESS -t antiphon:cpu .
FROM python:3.12-slim

ARG TORCH_INDEX=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY antiphon antiphon
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir -c constraints.txt --index-url "$TORCH_INDEX" torch; \
    fi \
    && pip install --no-cache-dir -c constraints.txt '.[demo,encoder]'

RUN useradd --create-home --uid 1000 antiphon
USER 1000
WORKDIR /home/antiphon
ENTRYPOINT ["antiphon"]
CMD ["demo"]
