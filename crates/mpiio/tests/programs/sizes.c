/* The length of a file: cut, extended, with holes, and beyond 4 GiB. */
#include "check.h"

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    MPI_Offset size, far = 5000000000LL;
    unsigned char buffer[3000];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int i = 0; i < 3000; i++)
        buffer[i] = mark(rank * 3000 + i, 1);
    OK(MPI_File_write_at(file, rank * 3000, buffer, 3000, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    /* Cut in the middle of what is cached, and made longer again: zeros. */
    OK(MPI_File_set_size(file, 4000));
    OK(MPI_File_get_size(file, &size));
    WANT(size == 4000);
    OK(MPI_File_read_at(file, 3500, buffer, 3000, MPI_BYTE, &status));
    WANT(count_of(&status) == 500);
    for (int i = 0; i < 500; i++)
        WANT(buffer[i] == mark(3500 + i, 1));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 9000));
    OK(MPI_File_read_at(file, 3500, buffer, 3000, MPI_BYTE, &status));
    WANT(count_of(&status) == 3000);
    for (int i = 500; i < 3000; i++)
        WANT(buffer[i] == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_preallocate(file, 20000));
    OK(MPI_File_get_size(file, &size));
    WANT(size == 20000);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at_all(file, 3990, buffer, 20, MPI_BYTE, &status));
    for (int i = 0; i < 20; i++)
        WANT(buffer[i] == (i < 10 ? mark(3990 + i, 1) : 0));
    MPI_Barrier(MPI_COMM_WORLD);
    /* A hole, and all processes beyond 4 GiB, each across what another has written. */
    for (int i = 0; i < 3000; i++)
        buffer[i] = mark(far + rank * 3000 + i, 2);
    OK(MPI_File_write_at_all(file, far + rank * 3000, buffer, 3000, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &size));
    WANT(size == far + ranks * 3000);
    int from = (rank + 1) % ranks;
    OK(MPI_File_read_at(file, far + from * 3000, buffer, 3000, MPI_BYTE, &status));
    for (int i = 0; i < 3000; i++)
        WANT(buffer[i] == mark(far + from * 3000 + i, 2));
    OK(MPI_File_read_at(file, far - 1000, buffer, 1000, MPI_BYTE, &status));
    for (int i = 0; i < 1000; i++)
        WANT(buffer[i] == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_set_size(file, 20000));
    OK(MPI_File_close(&file));
    /* What is longer than before although only one process wrote it. */
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    if (rank == ranks - 1)
        OK(MPI_File_write_at(file, 25000, "end", 3, MPI_BYTE, &status));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_get_size(file, &size));
    WANT(size == 25003);
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
