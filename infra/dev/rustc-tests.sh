#!/bin/bash
# Stands before rustc while the tests are built (RUSTC_WRAPPER). A test program is optimised a little, for most of them run
# for seconds and took longer to compile; what it links is what the programs link, and nothing is built twice. Cargo has no
# profile for this: one for tests would compile all libraries again. The shell is bash, which hands on the
# variables whose names have a `-`.
for word in "$@"; do
    [ "$word" != --test ] || exec "$@" -C opt-level=1
done
exec "$@"
