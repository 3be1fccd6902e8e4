# Everything that a change must pass
check:
    .ci/run

# The tests whose names contain NAME, such as `just test webhooks::`
test NAME:
    cargo test --locked --test it -- {{NAME}}

# The whole service on 127.0.0.1:8080
run *FLAGS:
    cargo run --release --locked -- serve {{FLAGS}}

# Measurements on one machine
bench:
    cargo bench --locked --bench load

# The archive, the Debian package and, if buildah is installed, the container image
release:
    tools/release
