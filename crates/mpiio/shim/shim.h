/* Between the files of the shim. */
#ifndef FOREBAY_SHIM_H
#define FOREBAY_SHIM_H

#include <dlfcn.h>
#include <mpi.h>
#include <string.h>

#include "forebay_mpiio.h"

/* MPI may call its own functions by their public names: then they are meant. */
extern __thread int fb_depth;

/* MPI's own function of this name, whichever of its two names was called. */
#define FB_REAL(name)                                                            \
    static __typeof__(&MPI_##name) real;                                         \
    if (!real)                                                                   \
    real = (__typeof__(real))dlsym(RTLD_NEXT, "PMPI_" #name)

#define FB_CALL(result, call)                                                    \
    do {                                                                         \
        fb_depth++;                                                              \
        result = call;                                                           \
        fb_depth--;                                                              \
    } while (0)

/* The function under its profiling name, too: Fortran calls that one. */
#define FB_BOTH(name)                                                            \
    extern __typeof__(MPI_##name) PMPI_##name __attribute__((alias("MPI_" #name)))

/* Handles are ints or pointers. */
#define FB_HANDLES(type, to, from)                                               \
    static inline uint64_t to(type handle) {                                     \
        uint64_t number = 0;                                                     \
        memcpy(&number, &handle, sizeof handle);                                 \
        return number;                                                           \
    }                                                                            \
    static inline type from(uint64_t number) {                                   \
        type handle;                                                             \
        memcpy(&handle, &number, sizeof handle);                                 \
        return handle;                                                           \
    }
FB_HANDLES(MPI_Comm, fb_of_comm, fb_to_comm)
FB_HANDLES(MPI_Datatype, fb_of_type, fb_to_type)
FB_HANDLES(MPI_File, fb_of_file, fb_to_file)

/* Calls the error handler of a file. Answers the error. */
int fb_fail(MPI_File file, int64_t code);
/* Which error of MPI's a code is. */
int fb_error(int64_t code);

/* In types.c. */
int fb_describe(uint64_t type, struct fb_node *node);
void fb_forget(struct fb_node *node);
/* In data.c. */
void fb_complete(void *request, int64_t bytes, int failed);
/* In start.c. */
extern MPI_Comm fb_world;
extern int fb_started;

#endif
