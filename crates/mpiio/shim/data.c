/* Reading and writing: each function of MPI's is one call of the library, or passes through. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "shim.h"

struct request {
    MPI_Request request;
    int64_t bytes;
    int failed;
};

static int query(void *state, MPI_Status *status) {
    struct request *request = state;
    PMPI_Status_set_elements_x(status, MPI_BYTE, (MPI_Count)request->bytes);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return request->failed ? fb_error(request->failed) : MPI_SUCCESS;
}

static int dispose(void *state) {
    free(state);
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete) {
    (void)state;
    (void)complete;
    return MPI_SUCCESS;
}

void fb_complete(void *state, int64_t bytes, int failed) {
    struct request *request = state;
    request->bytes = bytes;
    request->failed = failed;
    PMPI_Grequest_complete(request->request);
}

static int64_t blocking(MPI_File file, struct fb_access access, MPI_Datatype type) {
    if (fb_depth || !fb_started || type == MPI_DATATYPE_NULL)
        return FB_PASS;
    access.type = fb_of_type(type);
    return fb_access(fb_of_file(file), &access, NULL);
}

static int finish(MPI_File file, int64_t bytes, MPI_Status *status) {
    if (bytes < 0)
        return fb_fail(file, bytes);
    if (status != MPI_STATUS_IGNORE) {
        PMPI_Status_set_elements_x(status, MPI_BYTE, (MPI_Count)bytes);
        PMPI_Status_set_cancelled(status, 0);
    }
    return MPI_SUCCESS;
}

static int64_t begin(MPI_File file, struct fb_access access, MPI_Datatype type,
                     MPI_Request *handle) {
    if (fb_depth || !fb_started || type == MPI_DATATYPE_NULL || !fb_cached(fb_of_file(file)))
        return FB_PASS;
    struct request *request = calloc(1, sizeof *request);
    if (!request || PMPI_Grequest_start(query, dispose, cancel, request, &request->request)) {
        free(request);
        return FB_FAILED;
    }
    MPI_Request made = request->request;
    access.type = fb_of_type(type);
    int64_t code = fb_access(fb_of_file(file), &access, request);
    if (code >= 0) {
        *handle = made;
        return FB_OK;
    }
    PMPI_Grequest_complete(made);
    PMPI_Request_free(&made);
    return code;
}

#define ACCESS(writes, pointer, collective, offset)                              \
    (struct fb_access) { writes, pointer, collective, offset, (void *)buf, count, 0 }

#define BLOCKING(name, number, quality, writes, pointer, all, at, params, args)  \
    int MPI_File_##name(MPI_File fh, params quality void *buf, number count,     \
                        MPI_Datatype type, MPI_Status *status) {                 \
        FB_REAL(File_##name);                                                    \
        int code;                                                                \
        int64_t bytes = blocking(fh, ACCESS(writes, pointer, all, at), type);    \
        if (bytes != FB_PASS)                                                    \
            return finish(fh, bytes, status);                                    \
        FB_CALL(code, real(fh, args buf, count, type, status));                  \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_##name);

#define NONBLOCKING(name, number, quality, writes, pointer, all, at, params, args) \
    int MPI_File_##name(MPI_File fh, params quality void *buf, number count,     \
                        MPI_Datatype type, MPI_Request *request) {               \
        FB_REAL(File_##name);                                                    \
        int code;                                                                \
        int64_t begun = begin(fh, ACCESS(writes, pointer, all, at), type, request); \
        if (begun != FB_PASS)                                                    \
            return begun == FB_OK ? MPI_SUCCESS : fb_fail(fh, begun);            \
        FB_CALL(code, real(fh, args buf, count, type, request));                 \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_##name);

/* The two halves of a split call: all is done in the first one. */
#define SPLIT_BEGIN(name, number, quality, writes, pointer, at, params, args)    \
    int MPI_File_##name(MPI_File fh, params quality void *buf, number count,     \
                        MPI_Datatype type) {                                     \
        FB_REAL(File_##name);                                                    \
        int code;                                                                \
        int64_t bytes = blocking(fh, ACCESS(writes, pointer, 1, at), type);      \
        if (bytes != FB_PASS) {                                                  \
            if (bytes >= 0)                                                      \
                fb_split_begin(fb_of_file(fh), bytes);                           \
            return bytes >= 0 ? MPI_SUCCESS : fb_fail(fh, bytes);                \
        }                                                                        \
        FB_CALL(code, real(fh, args buf, count, type));                          \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_##name);

#define SPLIT_END(name, quality)                                                 \
    int MPI_File_##name(MPI_File fh, quality void *buf, MPI_Status *status) {    \
        FB_REAL(File_##name);                                                    \
        int code;                                                                \
        int64_t bytes = fb_depth || !fb_started ? FB_PASS : fb_split_end(fb_of_file(fh)); \
        if (bytes != FB_PASS)                                                    \
            return finish(fh, bytes, status);                                    \
        FB_CALL(code, real(fh, buf, status));                                    \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_##name);

#define NO
#define AT_PARAMS MPI_Offset offset,
#define AT_ARGS offset,
#define EXPLICIT(make, name, number, quality, writes, all)                       \
    make(name, number, quality, writes, FB_EXPLICIT, all, offset, AT_PARAMS, AT_ARGS)
#define POINTED(make, name, number, quality, writes, pointer, all)               \
    make(name, number, quality, writes, pointer, all, 0, NO, NO)

#define ALL(number, s)                                                           \
    EXPLICIT(BLOCKING, read_at##s, number, NO, 0, 0)                             \
    EXPLICIT(BLOCKING, read_at_all##s, number, NO, 0, 1)                         \
    EXPLICIT(BLOCKING, write_at##s, number, const, 1, 0)                         \
    EXPLICIT(BLOCKING, write_at_all##s, number, const, 1, 1)                     \
    POINTED(BLOCKING, read##s, number, NO, 0, FB_INDIVIDUAL, 0)                  \
    POINTED(BLOCKING, read_all##s, number, NO, 0, FB_INDIVIDUAL, 1)              \
    POINTED(BLOCKING, write##s, number, const, 1, FB_INDIVIDUAL, 0)              \
    POINTED(BLOCKING, write_all##s, number, const, 1, FB_INDIVIDUAL, 1)          \
    POINTED(BLOCKING, read_shared##s, number, NO, 0, FB_SHARED, 0)               \
    POINTED(BLOCKING, write_shared##s, number, const, 1, FB_SHARED, 0)           \
    POINTED(BLOCKING, read_ordered##s, number, NO, 0, FB_ORDERED, 1)             \
    POINTED(BLOCKING, write_ordered##s, number, const, 1, FB_ORDERED, 1)         \
    EXPLICIT(NONBLOCKING, iread_at##s, number, NO, 0, 0)                         \
    EXPLICIT(NONBLOCKING, iread_at_all##s, number, NO, 0, 1)                     \
    EXPLICIT(NONBLOCKING, iwrite_at##s, number, const, 1, 0)                     \
    EXPLICIT(NONBLOCKING, iwrite_at_all##s, number, const, 1, 1)                 \
    POINTED(NONBLOCKING, iread##s, number, NO, 0, FB_INDIVIDUAL, 0)              \
    POINTED(NONBLOCKING, iread_all##s, number, NO, 0, FB_INDIVIDUAL, 1)          \
    POINTED(NONBLOCKING, iwrite##s, number, const, 1, FB_INDIVIDUAL, 0)          \
    POINTED(NONBLOCKING, iwrite_all##s, number, const, 1, FB_INDIVIDUAL, 1)      \
    POINTED(NONBLOCKING, iread_shared##s, number, NO, 0, FB_SHARED, 0)           \
    POINTED(NONBLOCKING, iwrite_shared##s, number, const, 1, FB_SHARED, 0)       \
    SPLIT_BEGIN(read_at_all_begin##s, number, NO, 0, FB_EXPLICIT, offset, AT_PARAMS, AT_ARGS) \
    SPLIT_BEGIN(write_at_all_begin##s, number, const, 1, FB_EXPLICIT, offset, AT_PARAMS, AT_ARGS) \
    SPLIT_BEGIN(read_all_begin##s, number, NO, 0, FB_INDIVIDUAL, 0, NO, NO)      \
    SPLIT_BEGIN(write_all_begin##s, number, const, 1, FB_INDIVIDUAL, 0, NO, NO)  \
    SPLIT_BEGIN(read_ordered_begin##s, number, NO, 0, FB_ORDERED, 0, NO, NO)     \
    SPLIT_BEGIN(write_ordered_begin##s, number, const, 1, FB_ORDERED, 0, NO, NO)

ALL(int, )
#if MPI_VERSION >= 4
ALL(MPI_Count, _c)
#endif

SPLIT_END(read_at_all_end, )
SPLIT_END(write_at_all_end, const)
SPLIT_END(read_all_end, )
SPLIT_END(write_all_end, const)
SPLIT_END(read_ordered_end, )
SPLIT_END(write_ordered_end, const)
