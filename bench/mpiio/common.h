/* What the workloads of bench/mpiio.sh share. Each is run as
 *
 *     WORKLOAD FILE plain|atomic|locks SIZE...
 *
 * with the file's whole path (Open MPI does not open others everywhere),
 * and prints the seconds that its input and output took, from open to close, and the bytes that all
 * processes moved. Then the first process verifies every byte of the file, by plain system calls: a
 * wrong one ends the job. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks, atomic_mode, locks;

#define WANT(what)                                                               \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: process %d: not %s\n", __FILE__, __LINE__, rank, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                        \
        }                                                                        \
    } while (0)
#define OK(call) WANT((call) == MPI_SUCCESS)

static inline void begin(int *argc, char ***argv, int words) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    WANT(*argc == words);
    atomic_mode = !strcmp((*argv)[2], "atomic");
    locks = !strcmp((*argv)[2], "locks");
    WANT(atomic_mode || locks || !strcmp((*argv)[2], "plain"));
}

static inline long number(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    WANT(value > 0 && !*end);
    return value;
}

/* The seconds of the slowest, and the bytes of all. */
static inline void report(double seconds, int64_t bytes) {
    double slowest;
    int64_t all;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&bytes, &all, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
        printf("%.6f %lld\n", slowest, (long long)all);
}

static inline void *some(size_t bytes) {
    void *made = malloc(bytes);
    WANT(made);
    return made;
}

/* So many bytes of a file, by the system. */
static inline void system_read(int descriptor, void *buffer, size_t bytes, off_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(descriptor, (char *)buffer + done, bytes - done, at + (off_t)done);
        WANT(got > 0);
        done += (size_t)got;
    }
}
