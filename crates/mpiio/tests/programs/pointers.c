/* Individual and shared pointers, in order and not, with a view, and a file that is appended to. */
#include "check.h"

enum { MANY = 25 };

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    MPI_Offset at, size;
    int value, seen[200];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_view(file, 8, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    /* Individual. */
    OK(MPI_File_seek(file, rank * 10, MPI_SEEK_SET));
    for (int i = 0; i < 10; i++) {
        value = rank * 10 + i;
        OK(MPI_File_write(file, &value, 1, MPI_INT, &status));
        OK(MPI_File_get_position(file, &at));
        WANT(at == rank * 10 + i + 1);
    }
    OK(MPI_File_seek(file, -3, MPI_SEEK_CUR));
    OK(MPI_File_read(file, &value, 1, MPI_INT, &status));
    WANT(value == rank * 10 + 7);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_seek(file, -2, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    WANT(at == 10 * ranks - 2);
    OK(MPI_File_get_byte_offset(file, at, &at));
    WANT(at == 8 + (10 * ranks - 2) * 4);
    OK(MPI_File_read_all(file, &value, 1, MPI_INT, &status));
    WANT(value == 10 * ranks - 2);
    WANT(MPI_File_seek(file, -1, MPI_SEEK_SET) != MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Shared: who comes first does not matter, but each place is written once. */
    OK(MPI_File_seek_shared(file, 100, MPI_SEEK_SET));
    for (int i = 0; i < MANY; i++) {
        value = 1000 + rank * MANY + i;
        OK(MPI_File_write_shared(file, &value, 1, MPI_INT, &status));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    WANT(at == 100 + MANY * ranks);
    OK(MPI_File_sync(file));
    OK(MPI_File_read_at_all(file, 100, seen, MANY * ranks, MPI_INT, &status));
    for (int i = 0; i < MANY * ranks; i++) {
        int found = 0;
        for (int j = 0; j < MANY * ranks; j++)
            found += seen[j] == 1000 + i;
        WANT(found == 1);
    }
    /* The same places, now in order, which the file keeps. */
    OK(MPI_File_seek_shared(file, 100, MPI_SEEK_SET));
    for (int i = 0; i < MANY; i++) {
        value = i * ranks + rank;
        OK(MPI_File_write_ordered(file, &value, 1, MPI_INT, &status));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_read_at(file, 100, seen, MANY * ranks, MPI_INT, &status));
    for (int i = 0; i < MANY * ranks; i++)
        WANT(seen[i] == i);
    OK(MPI_File_seek_shared(file, 100, MPI_SEEK_SET));
    OK(MPI_File_read_ordered(file, &value, 1, MPI_INT, &status));
    WANT(value == rank);
    long sum = 0, all;
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_shared(file, &value, 1, MPI_INT, &status));
    sum = value;
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    WANT(all == (long)ranks * ranks + (long)ranks * (ranks - 1) / 2);
    OK(MPI_File_get_size(file, &size));
    OK(MPI_File_close(&file));
    WANT(size == 8 + 4 * (100 + MANY * ranks));
    /* Appended. */
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_WRONLY | MPI_MODE_APPEND, MPI_INFO_NULL, &file));
    OK(MPI_File_get_position(file, &at));
    WANT(at == size);
    OK(MPI_File_get_position_shared(file, &at));
    WANT(at == size);
    OK(MPI_File_seek(file, rank * 4, MPI_SEEK_CUR));
    value = 77 + rank;
    OK(MPI_File_write(file, &value, 1, MPI_INT, &status));
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
