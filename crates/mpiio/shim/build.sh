#!/bin/sh
# Links the library for one MPI: build.sh MPICC LIBRARY.a OUT.so
set -eu
shim=$(dirname "$0")
"$1" -shared -fPIC -O2 -g -Wall -Wextra -Werror -o "$3" \
    "$shim/start.c" "$shim/types.c" "$shim/data.c" "$shim/file.c" \
    -Wl,--whole-archive "$2" -Wl,--no-whole-archive \
    -Wl,--version-script="$shim/exports.map" -Wl,--gc-sections -Wl,-z,defs \
    -lgcc_s -lpthread -ldl -lm
