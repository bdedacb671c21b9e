/* What MPI refuses, error handlers, hints, and files that pass through. */
#include "check.h"

/* Open MPI 4.1 has no other representation. */
#ifdef OPEN_MPI
#define OTHER "native"
#else
#define OTHER "internal"
#endif

static int handled;

static void handler(MPI_File *file, int *code, ...) {
    (void)file;
    (void)code;
    handled++;
}

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    MPI_Errhandler errors;
    MPI_Info info, used;
    MPI_Group group;
    MPI_Offset at;
    int amode, size, found, kind;
    char buffer[100], value[100];
    begin(&argc, &argv);
    memset(buffer, 'x', sizeof buffer);
    /* No such file; then one, and what is not allowed on it. */
    WANT(MPI_File_open(MPI_COMM_WORLD, "/nowhere/at all", MPI_MODE_RDONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file));
    OK(MPI_File_write_at(file, rank * 100, buffer, 100, MPI_BYTE, &status));
    WANT(MPI_File_read_at(file, 0, buffer, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    WANT(MPI_File_write_at(file, 0, buffer, -1, MPI_BYTE, &status) != MPI_SUCCESS);
    OK(MPI_File_get_amode(file, &amode));
    WANT(amode == (MPI_MODE_CREATE | MPI_MODE_WRONLY));
    OK(MPI_File_get_group(file, &group));
    MPI_Group_size(group, &size);
    WANT(size == ranks);
    MPI_Group_free(&group);
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    MPI_File_create_errhandler(handler, &errors);
    OK(MPI_File_set_errhandler(file, errors));
    WANT(MPI_File_write_at(file, 0, buffer, 1, MPI_BYTE, &status) != MPI_SUCCESS);
    WANT(handled == 1);
    WANT(MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS);
    WANT(handled == 2);
    MPI_Errhandler_free(&errors);
    OK(MPI_File_close(&file));
    /* Hints: those of ours are reported if they are known. */
    MPI_Info_create(&info);
    MPI_Info_set(info, "forebay_page_size", "8192");
    MPI_Info_set(info, "forebay_pool_size", "1M");
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, info, &file));
    OK(MPI_File_get_info(file, &used));
    if (getenv("FOREBAY_TEST_LIBRARY") && !getenv("FOREBAY_MPIIO_PAGE_SIZE")) {
        MPI_Info_get(used, "forebay_page_size", 90, value, &found);
        WANT(found && !strcmp(value, "8192"));
        MPI_Info_get(used, "forebay_pool_size", 90, value, &found);
        WANT(found && !strcmp(value, "1048576"));
        MPI_Info_get(used, "forebay_cache", 90, value, &found);
        WANT(found && !strcmp(value, "enable"));
    }
    MPI_Info_free(&used);
    /* Between a view that the cache can't have and one that it can. */
    for (int i = 0; i < 3; i++) {
        OK(MPI_File_write_at(file, 1000 + rank * 10, "cached....", 10, MPI_BYTE, &status));
        OK(MPI_File_set_view(file, 2000, MPI_INT, MPI_INT, i == 1 ? OTHER : "native", MPI_INFO_NULL));
        int number = 5 + i + rank;
        OK(MPI_File_write_at_all(file, i * ranks + rank, &number, 1, MPI_INT, &status));
        OK(MPI_File_seek(file, 3, MPI_SEEK_SET));
        OK(MPI_File_get_position(file, &at));
        WANT(at == 3);
        OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    }
    OK(MPI_File_close(&file));
    /* Without the cache. */
    MPI_Info_set(info, "forebay_cache", "disable");
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, info, &file));
    OK(MPI_File_write_at(file, 4000 + rank * 10, "direct....", 10, MPI_BYTE, &status));
    OK(MPI_File_sync(file));
    OK(MPI_File_get_info(file, &used));
    MPI_Info_get(used, "forebay_pool_size", 90, value, &found);
    WANT(!found || strcmp(value, "67108864"));
    MPI_Info_free(&used);
    OK(MPI_File_close(&file));
    MPI_Info_free(&info);
    /* Calls of nothing. */
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_write_at_all(file, 9999, NULL, 0, MPI_BYTE, &status));
    WANT(count_of(&status) == 0);
    OK(MPI_File_read_all(file, NULL, 0, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_get_size(file, &at));
    WANT(at == 4000 + ranks * 10);
    OK(MPI_File_close(&file));
    MPI_Query_thread(&kind);
    WANT(kind >= MPI_THREAD_SINGLE);
    MPI_Finalize();
    return 0;
}
