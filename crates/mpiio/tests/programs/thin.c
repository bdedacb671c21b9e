/* Interleaved records of all processes, across pages, read back by others. */
#include "check.h"

enum { RECORD = 1000, RECORDS = 300 };

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    MPI_Offset size;
    unsigned char buffer[RECORD];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < RECORDS; i++) {
            long record = (long)i * ranks + rank;
            for (int j = 0; j < RECORD; j++)
                buffer[j] = mark(record * RECORD + j, round);
            OK(MPI_File_write_at(file, record * RECORD, buffer, RECORD, MPI_BYTE, &status));
            WANT(count_of(&status) == RECORD);
        }
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < RECORDS; i++) {
            long record = (long)i * ranks + (rank + 1 + i) % ranks;
            memset(buffer, 0, RECORD);
            OK(MPI_File_read_at(file, record * RECORD, buffer, RECORD, MPI_BYTE, &status));
            WANT(count_of(&status) == RECORD);
            for (int j = 0; j < RECORD; j++)
                WANT(buffer[j] == mark(record * RECORD + j, round));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_sync(file));
    }
    OK(MPI_File_get_size(file, &size));
    WANT(size == (MPI_Offset)RECORD * RECORDS * ranks);
    OK(MPI_File_read_at(file, size - 10, buffer, 100, MPI_BYTE, &status));
    WANT(count_of(&status) == 10);
    OK(MPI_File_read_at(file, size + 10, buffer, 100, MPI_BYTE, &status));
    WANT(count_of(&status) == 0);
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
