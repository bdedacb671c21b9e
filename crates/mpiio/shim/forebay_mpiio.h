/* Between the shim, which is compiled for one MPI, and the library, which knows none. Handles of
 * that MPI cross as numbers. Everything here is mirrored in src/mpi.rs. */
#ifndef FOREBAY_MPIIO_H
#define FOREBAY_MPIIO_H

#include <stddef.h>
#include <stdint.h>

enum fb_combiner {
    FB_BYTES,
    FB_SHORT_INT,
    FB_DUP,
    FB_CONTIGUOUS,
    FB_VECTOR,
    FB_HVECTOR,
    FB_INDEXED,
    FB_HINDEXED,
    FB_INDEXED_BLOCK,
    FB_HINDEXED_BLOCK,
    FB_STRUCT,
    FB_SUBARRAY,
    FB_DARRAY,
    FB_UNKNOWN
};

/* How a datatype was made. Numbers and addresses come in the order of MPI_Type_get_contents. */
struct fb_node {
    int combiner;
    int64_t extent;
    int64_t size;
    int64_t *numbers;
    size_t number_count;
    int64_t *addresses;
    size_t address_count;
    uint64_t *types;
    size_t type_count;
    /* Which order and distributions of arrays the numbers mean. */
    int64_t order_fortran, distribute_none, distribute_block, distribute_cyclic, distribute_default;
};

/* What the library asks MPI for. Those with an int answer 0 for success. */
struct fb_mpi {
    /* Begins to send to a process of the world; the bytes stay until it is sent. */
    void *(*send)(int to, const void *bytes, size_t len);
    /* Whether it is sent. Then the request is gone. */
    int (*sent)(void *request);
    /* The length of a message that has come, and from whom; -1 if none has. */
    int64_t (*probe)(int *from);
    /* Takes that message. */
    int (*receive)(void *into, size_t len);
    /* Makes a node of a type. */
    int (*describe)(uint64_t type, struct fb_node *node);
    /* Frees what it holds. */
    void (*forget)(struct fb_node *node);
    /* A request of a program is done. */
    void (*complete)(void *request, int64_t bytes, int failed);
    int (*duplicate)(uint64_t comm, uint64_t *copy);
    void (*release)(uint64_t comm);
    int (*barrier)(uint64_t comm);
    /* The largest of each number. */
    int (*largest)(uint64_t comm, int64_t *numbers, int count);
    /* The sum of each number. */
    int (*sum)(uint64_t comm, int64_t *numbers, int count);
    /* The sum of a number in the processes before this one. */
    int (*before)(uint64_t comm, int64_t number, int64_t *sum);
    /* Gives all the bytes of process 0. */
    int (*share)(uint64_t comm, void *bytes, size_t len);
};

/* Starts the library. The node is a communicator of processes that share memory: their ranks in
 * the world, in its order. Answers 0 for success. */
int fb_start(const struct fb_mpi *mpi, int rank, int size, uint64_t world, uint64_t node,
             const int *members, int member_count, int member);
/* Ends it: collective over the world. */
void fb_stop(void);

struct fb_opening {
    uint64_t comm;
    const char *path;
    /* The ranks in the world of the communicator's processes; none if they are not all in it. */
    const int *ranks;
    int rank, size;
    int reads, writes, appends, sequential;
    /* Hints as the program gave them, or none. */
    const char *cache, *page_size, *pool_size;
};

/* Numbers that fb_* answer with. */
enum { FB_OK = 0, FB_PASS = -1, FB_FAILED = -2, FB_NO_SPACE = -3, FB_ARGUMENT = -4 };

/* A file was opened by all: collective. FB_OK if its calls go through the cache. */
int fb_open(uint64_t file, const struct fb_opening *opening);
/* Writes back and forgets: collective. FB_PASS if it does not know the file. */
int fb_close(uint64_t file);
/* Writes back, and forgets what is cached: collective. With `durable`, to the device. Nothing is
 * cached until fb_reopen, also collective, which finds out how long the file is. */
int fb_settle(uint64_t file, int durable);
int fb_reopen(uint64_t file);
/* After the view was set: collective. Passes through if it is not `native`. */
int fb_view(uint64_t file, int64_t displacement, uint64_t etype, uint64_t filetype, int native);
int fb_atomic(uint64_t file, int flag);
/* Whether the file is cached. */
int fb_cached(uint64_t file);
int64_t fb_length(uint64_t file);
/* Page size and pool size in use. */
int fb_sizes(uint64_t file, int64_t *page_size, int64_t *pool_size);

enum { FB_EXPLICIT, FB_INDIVIDUAL, FB_SHARED, FB_ORDERED };
enum { FB_SET, FB_CURRENT, FB_END };

struct fb_access {
    int writes;
    int pointer;
    int collective;
    int64_t offset;
    void *buffer;
    int64_t count;
    uint64_t type;
};

/* Reads or writes. Answers the bytes. With a request: begins to, and completes it later. */
int64_t fb_access(uint64_t file, const struct fb_access *access, void *request);
int fb_seek(uint64_t file, int shared, int64_t offset, int whence);
int64_t fb_position(uint64_t file, int shared);
/* A split collective call keeps its result between its two halves. */
void fb_split_begin(uint64_t file, int64_t result);
int64_t fb_split_end(uint64_t file);
void fb_say(const char *line);

#endif
