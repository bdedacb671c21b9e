/* Start and end of MPI, and what the library asks it for. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "shim.h"

enum { TAG = 19 };

__thread int fb_depth;
MPI_Comm fb_world = MPI_COMM_NULL;
int fb_started;

static MPI_Message message;

static void *send(int to, const void *bytes, size_t len) {
    MPI_Request *request = malloc(sizeof *request);
    if (request && PMPI_Isend(bytes, (int)len, MPI_BYTE, to, TAG, fb_world, request)) {
        free(request);
        return NULL;
    }
    return request;
}

static int sent(void *pointer) {
    MPI_Request *request = pointer;
    int flag = 0;
    if (PMPI_Test(request, &flag, MPI_STATUS_IGNORE))
        flag = 1;
    if (flag)
        free(request);
    return flag;
}

static int64_t probe(int *from) {
    int flag = 0, count = 0;
    MPI_Status status;
    if (PMPI_Improbe(MPI_ANY_SOURCE, TAG, fb_world, &flag, &message, &status) || !flag)
        return -1;
    PMPI_Get_count(&status, MPI_BYTE, &count);
    *from = status.MPI_SOURCE;
    return count;
}

static int receive(void *into, size_t len) {
    return PMPI_Mrecv(into, (int)len, MPI_BYTE, &message, MPI_STATUS_IGNORE);
}

static int duplicate(uint64_t comm, uint64_t *copy) {
    MPI_Comm made;
    int code = PMPI_Comm_dup(fb_to_comm(comm), &made);
    if (code)
        return code;
    PMPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    *copy = fb_of_comm(made);
    return 0;
}

static void release(uint64_t number) {
    MPI_Comm comm = fb_to_comm(number);
    PMPI_Comm_free(&comm);
}

static int barrier(uint64_t comm) { return PMPI_Barrier(fb_to_comm(comm)); }

static int largest(uint64_t comm, int64_t *numbers, int count) {
    return PMPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INT64_T, MPI_MAX, fb_to_comm(comm));
}

static int sum(uint64_t comm, int64_t *numbers, int count) {
    return PMPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INT64_T, MPI_SUM, fb_to_comm(comm));
}

static int before(uint64_t comm, int64_t number, int64_t *result) {
    int rank, code = PMPI_Exscan(&number, result, 1, MPI_INT64_T, MPI_SUM, fb_to_comm(comm));
    PMPI_Comm_rank(fb_to_comm(comm), &rank);
    if (rank == 0)
        *result = 0;
    return code;
}

static int share(uint64_t comm, void *bytes, size_t len) {
    return PMPI_Bcast(bytes, (int)len, MPI_BYTE, 0, fb_to_comm(comm));
}

static const struct fb_mpi calls = {
    send,      sent,    probe,   receive, fb_describe, fb_forget, fb_complete,
    duplicate, release, barrier, largest, sum,         before,    share,
};

static void start(int provided) {
    const char *off = getenv("FOREBAY_MPIIO");
    int rank, size, node_rank, node_size;
    int64_t without = provided < MPI_THREAD_MULTIPLE;
    MPI_Comm node;
    if (off && (!strcmp(off, "off") || !strcmp(off, "0")))
        return;
    fb_depth++;
    PMPI_Comm_dup(MPI_COMM_WORLD, &fb_world);
    PMPI_Comm_set_errhandler(fb_world, MPI_ERRORS_RETURN);
    PMPI_Comm_rank(fb_world, &rank);
    PMPI_Comm_size(fb_world, &size);
    largest(fb_of_comm(fb_world), &without, 1);
    if (without) {
        if (rank == 0)
            fb_say("MPI-IO passes through: this MPI has no MPI_THREAD_MULTIPLE");
        PMPI_Comm_free(&fb_world);
        fb_depth--;
        return;
    }
    PMPI_Comm_split_type(fb_world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    PMPI_Comm_rank(node, &node_rank);
    PMPI_Comm_size(node, &node_size);
    int *members = malloc(sizeof *members * (size_t)node_size);
    PMPI_Allgather(&rank, 1, MPI_INT, members, 1, MPI_INT, node);
    int64_t failed = fb_start(&calls, rank, size, fb_of_comm(fb_world), fb_of_comm(node), members,
                              node_size, node_rank) != FB_OK;
    free(members);
    PMPI_Comm_free(&node);
    largest(fb_of_comm(fb_world), &failed, 1);
    fb_started = !failed;
    if (failed && rank == 0)
        fb_say("MPI-IO passes through: no threads or no memory");
    fb_depth--;
}

/* A program that asks for less gets threads nevertheless: the library has two of its own. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    FB_REAL(Init_thread);
    int code;
    (void)required;
    FB_CALL(code, real(argc, argv, MPI_THREAD_MULTIPLE, provided));
    if (!code && !fb_depth)
        start(*provided);
    return code;
}
FB_BOTH(Init_thread);

int MPI_Init(int *argc, char ***argv) {
    int provided;
    return MPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, &provided);
}
FB_BOTH(Init);

int MPI_Finalize(void) {
    FB_REAL(Finalize);
    int code;
    if (fb_started && !fb_depth) {
        fb_started = 0;
        fb_depth++;
        fb_stop();
        PMPI_Comm_free(&fb_world);
        fb_depth--;
    }
    FB_CALL(code, real());
    return code;
}
FB_BOTH(Finalize);
