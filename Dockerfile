# The image of Windlass: one static binary, the public CA certificates, and directories to write to.
#
#   docker build --tag windlass --build-arg WINDLASS_COMMIT=$(git rev-parse --short=10 HEAD) .
#                                                  compile in a container and make the image
#   scripts/container-image                        the same image from a binary that this machine's cargo builds
#   docker build --tag windlass-gpu --target gpu --build-arg FEATURES=vulkan --build-arg LINKING=-crt-static .
#   docker build --tag windlass-gpu --target gpu --build-arg FEATURES=cuda --build-arg LINKING=-crt-static \
#     --build-arg DRIVERS=nvidia/cuda:12.9.1-devel-ubuntu24.04 .
#
# Build arguments: WINDLASS_COMMIT, the commit that `windlass_build_info` in /metrics names, as .git is not copied;
# RUST, the image to compile in; FEATURES, cargo features to add; LINKING, -crt-static for drivers that are loaded at run
# time; DRIVERS, the image that has them, with a glibc of 2.36 or later and apt-get; CARGO_BUILD_JOBS. CUDA kernels are
# compiled when they are first used, with NVRTC and the headers of the toolkit: those are in NVIDIA's `devel` images only,
# in /usr/local/cuda. Elsewhere CUDA_PATH names their directory.

ARG RUST=rust:1.95-bookworm
ARG DRIVERS=debian:bookworm-slim

FROM ${RUST} AS build
ARG FEATURES=""
ARG LINKING=+crt-static
ARG CARGO_BUILD_JOBS=default
ARG WINDLASS_COMMIT=""
WORKDIR /source
COPY . .
# Linking alone decides whether the C library is inside, so the flag goes to the last step and not to every crate.
RUN WINDLASS_COMMIT="$WINDLASS_COMMIT" cargo rustc --locked --release --package windlass --bin windlass --features "$FEATURES" -- \
      -C target-feature="$LINKING" -C strip=symbols \
 && install -D target/release/windlass /image/usr/local/bin/windlass \
 && install -D --mode 644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt \
 && install -d /writable/runs && install -d --mode 1777 /writable/tmp

# For GPUs: a static binary cannot load their drivers. BuildKit skips this stage unless it is asked for.
FROM ${DRIVERS} AS gpu
RUN apt-get update -q && apt-get install -qy --no-install-recommends libvulkan1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /image/ /
COPY --from=build --chown=65532:65532 /writable/runs/ /runs/
USER 65532:65532
EXPOSE 2222
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["windlass", "health"]
ENTRYPOINT ["windlass"]

FROM scratch
COPY --from=build /image/ /
COPY --from=build --chown=65532:65532 /writable/ /
ENV PATH=/usr/local/bin
USER 65532:65532
EXPOSE 2222
# The port is the one that the task in this container listens on, whatever its flags say.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["windlass", "health"]
ENTRYPOINT ["windlass"]
