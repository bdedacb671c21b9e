#!/bin/sh
# Links the library for each MPI that is installed: each.sh DIRECTORY, where cargo put the archive.
set -eu
shim=$(dirname "$0")
made=

# Which MPI a compiler is of: mpich, openmpi, or neither.
kind() {
    printf '#include <mpi.h>\n#if defined(OPEN_MPI)\nis openmpi\n#elif defined(MPICH_VERSION)\nis mpich\n#endif\n' |
        "$1" -E -x c - 2>/dev/null | sed -n 's/^is //p'
}

for compiler in mpicc.mpich mpicc.openmpi mpicc; do
    mpi=$(kind "$compiler") || mpi=
    case " $made " in *" $mpi "*) continue ;; esac
    [ -n "$mpi" ] || continue
    "$shim/build.sh" "$compiler" "$1/libforebay_mpiio.a" "$1/libforebay_mpiio_$mpi.so"
    echo "$1/libforebay_mpiio_$mpi.so"
    made="$made $mpi"
done
[ -n "$made" ] || {
    echo "no MPI: install mpich or libopenmpi-dev, and have mpicc in PATH" >&2
    exit 1
}
