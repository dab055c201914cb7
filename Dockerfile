# The gateway in a small image: docker build --tag onlyonce . ; how to run it is in docs/deploy.md.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked --package onlyonce-server --features all-stores

FROM debian:bookworm-slim
# The roots that upstreams' certificates are checked against.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
# A number of its own, so that a volume can be given to it from outside.
RUN groupadd --system --gid 10001 onlyonce \
    && useradd --system --uid 10001 --gid onlyonce --no-create-home --home-dir /var/lib/onlyonce onlyonce \
    && install --directory --mode 0700 --owner onlyonce --group onlyonce /var/lib/onlyonce
COPY --from=build /src/target/dist/onlyonce /usr/local/bin/onlyonce
COPY packaging/healthy /usr/local/bin/healthy

USER onlyonce
# Relative paths of settings start here; the default store is one of them.
WORKDIR /var/lib/onlyonce
VOLUME /var/lib/onlyonce
# Clients come from outside the container. The admin port stays on loopback: from elsewhere it needs a token.
ENV ONLYONCE_LISTEN=0.0.0.0:8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["healthy", "8081"]
ENTRYPOINT ["onlyonce"]
CMD ["serve"]
