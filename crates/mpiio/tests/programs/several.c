/* Several files and communicators at once, among them processes that open one file each by
 * themselves and write between each other's bytes. */
#include "check.h"

enum { RECORD = 37, RECORDS = 200 };

int main(int argc, char **argv) {
    MPI_File file, own, half;
    MPI_Comm part;
    MPI_Status status;
    char name[2000];
    unsigned char buffer[RECORD], seen[RECORD];
    begin(&argc, &argv);
    /* Each by itself, in turns in the same pages. */
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_close(&file));
    OK(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &own));
    for (int i = 0; i < RECORDS; i++) {
        long at = ((long)i * ranks + rank) * RECORD;
        for (int j = 0; j < RECORD; j++)
            buffer[j] = mark(at + j, 4);
        OK(MPI_File_write_at(own, at, buffer, RECORD, MPI_BYTE, &status));
        if (i % 50 == 49)
            OK(MPI_File_sync(own));
    }
    OK(MPI_File_sync(own));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(own));
    for (long i = 0; i < RECORDS * ranks; i++) {
        OK(MPI_File_read_at(own, i * RECORD, seen, RECORD, MPI_BYTE, &status));
        for (int j = 0; j < RECORD; j++)
            WANT(seen[j] == mark(i * RECORD + j, 4));
    }
    OK(MPI_File_close(&own));
    /* Two halves of the processes, in reverse order, on a file of their own, beside one of all. */
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    snprintf(name, sizeof name, "%s.half%d", argv[1], rank % 2);
    OK(MPI_File_open(part, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &half));
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    int mine, all;
    MPI_Comm_rank(part, &mine);
    MPI_Comm_size(part, &all);
    for (long i = 0; i < RECORDS; i++) {
        long at = (i * all + mine) * RECORD;
        for (int j = 0; j < RECORD; j++)
            buffer[j] = mark(at + j, 5 + rank % 2);
        OK(MPI_File_write_at(half, at, buffer, RECORD, MPI_BYTE, &status));
        OK(MPI_File_write_at(file, 40000 + (i * ranks + rank) * RECORD, buffer, RECORD, MPI_BYTE, &status));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(half));
    OK(MPI_File_sync(file));
    for (long i = 0; i < RECORDS * all; i++) {
        OK(MPI_File_read_at(half, i * RECORD, seen, RECORD, MPI_BYTE, &status));
        for (int j = 0; j < RECORD; j++)
            WANT(seen[j] == mark(i * RECORD + j, 5 + rank % 2));
    }
    OK(MPI_File_close(&half));
    OK(MPI_File_close(&file));
    MPI_Comm_free(&part);
    MPI_Barrier(MPI_COMM_WORLD);
    WANT(fopen(name, "r") == NULL);
    MPI_Finalize();
    return 0;
}
