/* What the test programs share. Each runs with and without the library; what they print and write
 * must be the same. A wrong result ends the job. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define WANT(what)                                                               \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: process %d: not %s\n", __FILE__, __LINE__, rank, #what); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                        \
        }                                                                        \
    } while (0)
#define OK(call) WANT((call) == MPI_SUCCESS)

/* A number that follows from its place. */
static inline unsigned char mark(long place, long salt) {
    unsigned long x = (unsigned long)place * 2654435761u + (unsigned long)salt * 40503u;
    return (unsigned char)(x >> 7 ^ x >> 19 ^ x);
}

static inline void begin(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    WANT(*argc > 1);
}

static inline int count_of(MPI_Status *status) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    return count;
}
