/* Opening and closing, and what concerns the file as a whole. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "shim.h"

int fb_error(int64_t code) {
    switch (code) {
    case FB_NO_SPACE: return MPI_ERR_NO_SPACE;
    case FB_ARGUMENT: return MPI_ERR_ARG;
    default: return MPI_ERR_IO;
    }
}

int fb_fail(MPI_File file, int64_t code) {
    int error = fb_error(code);
    fb_depth++;
    PMPI_File_call_errhandler(file, error);
    fb_depth--;
    return error;
}

/* Whether calls on a file are the library's business. */
static int ours(MPI_File file) { return !fb_depth && fb_started && fb_cached(fb_of_file(file)); }

static const char *hint(MPI_Info info, const char *key, char *value) {
    int found = 0;
    if (info == MPI_INFO_NULL)
        return NULL;
    PMPI_Info_get(info, key, MPI_MAX_INFO_VAL - 1, value, &found);
    return found ? value : NULL;
}

/* The ranks in the world of a communicator's processes, none if not all are in it. */
static int *world_ranks(MPI_Comm comm, int size) {
    MPI_Group group, world;
    int i, inter = 0, known = 1;
    int *own = malloc(sizeof *own * (size_t)size), *ranks = malloc(sizeof *ranks * (size_t)size);
    PMPI_Comm_test_inter(comm, &inter);
    if (inter || !own || !ranks) {
        free(own);
        free(ranks);
        return NULL;
    }
    PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(fb_world, &world);
    for (i = 0; i < size; i++)
        own[i] = i;
    PMPI_Group_translate_ranks(group, size, own, world, ranks);
    for (i = 0; i < size; i++)
        known &= ranks[i] != MPI_UNDEFINED;
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    free(own);
    if (!known) {
        free(ranks);
        return NULL;
    }
    return ranks;
}

static void take(MPI_Comm comm, const char *path, int amode, MPI_Info info, MPI_File file) {
    char cache[MPI_MAX_INFO_VAL], page[MPI_MAX_INFO_VAL], pool[MPI_MAX_INFO_VAL];
    struct fb_opening opening = {.comm = fb_of_comm(comm), .path = path};
    fb_depth++;
    PMPI_Comm_rank(comm, &opening.rank);
    PMPI_Comm_size(comm, &opening.size);
    int *ranks = world_ranks(comm, opening.size);
    opening.ranks = ranks;
    opening.reads = !(amode & MPI_MODE_WRONLY);
    opening.writes = !(amode & MPI_MODE_RDONLY);
    opening.appends = !!(amode & MPI_MODE_APPEND);
    opening.sequential = !!(amode & MPI_MODE_SEQUENTIAL);
    opening.cache = hint(info, "forebay_cache", cache);
    opening.page_size = hint(info, "forebay_page_size", page);
    opening.pool_size = hint(info, "forebay_pool_size", pool);
    fb_open(fb_of_file(file), &opening);
    free(ranks);
    fb_depth--;
}

int MPI_File_open(MPI_Comm comm, const char *path, int amode, MPI_Info info, MPI_File *file) {
    FB_REAL(File_open);
    int code;
    FB_CALL(code, real(comm, path, amode, info, file));
    if (!code && !fb_depth && fb_started)
        take(comm, path, amode, info, *file);
    return code;
}
FB_BOTH(File_open);

int MPI_File_close(MPI_File *file) {
    FB_REAL(File_close);
    int code, flushed = FB_PASS;
    if (!fb_depth && fb_started)
        flushed = fb_close(fb_of_file(*file));
    if (flushed != FB_PASS && flushed != FB_OK)
        flushed = fb_fail(*file, flushed);
    FB_CALL(code, real(file));
    return code || flushed < 0 ? code : flushed;
}
FB_BOTH(File_close);

int MPI_File_sync(MPI_File file) {
    FB_REAL(File_sync);
    int code;
    if (!ours(file)) {
        FB_CALL(code, real(file));
        return code;
    }
    int flushed = fb_settle(fb_of_file(file), 1);
    int opened = fb_reopen(fb_of_file(file));
    code = flushed ? flushed : opened;
    return code ? fb_fail(file, code) : MPI_SUCCESS;
}
FB_BOTH(File_sync);

/* The length changes underneath, while nothing is cached. */
#define LENGTH(name)                                                             \
    int MPI_File_##name(MPI_File file, MPI_Offset size) {                        \
        FB_REAL(File_##name);                                                    \
        int code, cached = ours(file), flushed = 0, opened = 0;                  \
        if (cached)                                                              \
            flushed = fb_settle(fb_of_file(file), 0);                            \
        FB_CALL(code, real(file, size));                                         \
        if (cached)                                                              \
            opened = fb_reopen(fb_of_file(file));                                \
        flushed = flushed ? flushed : opened;                                    \
        return code || !flushed ? code : fb_fail(file, flushed);                 \
    }                                                                            \
    FB_BOTH(File_##name);

LENGTH(set_size)
LENGTH(preallocate)

int MPI_File_get_size(MPI_File file, MPI_Offset *size) {
    FB_REAL(File_get_size);
    int code;
    int64_t length = fb_depth || !fb_started ? FB_PASS : fb_length(fb_of_file(file));
    if (length >= 0) {
        *size = length;
        return MPI_SUCCESS;
    }
    FB_CALL(code, real(file, size));
    return code;
}
FB_BOTH(File_get_size);

int MPI_File_get_info(MPI_File file, MPI_Info *info) {
    FB_REAL(File_get_info);
    int code;
    int64_t page, pool;
    char text[32];
    FB_CALL(code, real(file, info));
    if (code || !ours(file) || *info == MPI_INFO_NULL)
        return code;
    fb_depth++;
    if (fb_sizes(fb_of_file(file), &page, &pool) == FB_OK) {
        PMPI_Info_set(*info, "forebay_cache", "enable");
        snprintf(text, sizeof text, "%lld", (long long)page);
        PMPI_Info_set(*info, "forebay_page_size", text);
        snprintf(text, sizeof text, "%lld", (long long)pool);
        PMPI_Info_set(*info, "forebay_pool_size", text);
    }
    fb_depth--;
    return code;
}
FB_BOTH(File_get_info);

int MPI_File_set_view(MPI_File file, MPI_Offset displacement, MPI_Datatype etype,
                      MPI_Datatype filetype, const char *datarep, MPI_Info info) {
    FB_REAL(File_set_view);
    int code;
    FB_CALL(code, real(file, displacement, etype, filetype, datarep, info));
    if (code || fb_depth || !fb_started)
        return code;
    int set = fb_view(fb_of_file(file), displacement, fb_of_type(etype), fb_of_type(filetype),
                      !strcasecmp(datarep, "native"));
    return set == FB_OK || set == FB_PASS ? code : fb_fail(file, set);
}
FB_BOTH(File_set_view);

int MPI_File_set_atomicity(MPI_File file, int flag) {
    FB_REAL(File_set_atomicity);
    int code;
    FB_CALL(code, real(file, flag));
    if (code || fb_depth || !fb_started)
        return code;
    int set = fb_atomic(fb_of_file(file), flag);
    return set == FB_OK || set == FB_PASS ? code : fb_fail(file, set);
}
FB_BOTH(File_set_atomicity);

static int seek(MPI_File file, int shared, MPI_Offset offset, int whence) {
    if (fb_depth || !fb_started)
        return FB_PASS;
    int from = whence == MPI_SEEK_SET   ? FB_SET
               : whence == MPI_SEEK_CUR ? FB_CURRENT
               : whence == MPI_SEEK_END ? FB_END
                                        : -1;
    return from < 0 ? FB_PASS : fb_seek(fb_of_file(file), shared, offset, from);
}

#define POINTER(suffix, shared)                                                  \
    int MPI_File_seek##suffix(MPI_File file, MPI_Offset offset, int whence) {    \
        FB_REAL(File_seek##suffix);                                              \
        int code = seek(file, shared, offset, whence);                           \
        if (code != FB_PASS)                                                     \
            return code ? fb_fail(file, code) : MPI_SUCCESS;                     \
        FB_CALL(code, real(file, offset, whence));                               \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_seek##suffix);                                                  \
    int MPI_File_get_position##suffix(MPI_File file, MPI_Offset *offset) {       \
        FB_REAL(File_get_position##suffix);                                      \
        int code;                                                                \
        int64_t at = fb_depth || !fb_started ? FB_PASS                           \
                                             : fb_position(fb_of_file(file), shared); \
        if (at >= 0) {                                                           \
            *offset = at;                                                        \
            return MPI_SUCCESS;                                                  \
        }                                                                        \
        FB_CALL(code, real(file, offset));                                       \
        return code;                                                             \
    }                                                                            \
    FB_BOTH(File_get_position##suffix);

POINTER(, 0)
POINTER(_shared, 1)
