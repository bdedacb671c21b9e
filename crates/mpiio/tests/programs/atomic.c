/* Overlapping calls in atomic mode: who reads sees each write whole or not at all. */
#include "check.h"

enum { LONG = 9000, ROUNDS = 60 };

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    MPI_Datatype comb, gaps;
    int flag;
    unsigned char buffer[LONG], seen[LONG];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_get_atomicity(file, &flag));
    WANT(flag);
    memset(buffer, 200, LONG);
    if (rank == 0)
        OK(MPI_File_write_at(file, 100, buffer, LONG, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < ROUNDS; i++) {
        if ((i + rank) % 2) {
            memset(buffer, rank * ROUNDS + i, LONG);
            OK(MPI_File_write_at(file, 100, buffer, LONG, MPI_BYTE, &status));
        } else {
            OK(MPI_File_read_at(file, 100, seen, LONG, MPI_BYTE, &status));
            WANT(count_of(&status) == LONG);
            for (int j = 1; j < LONG; j++)
                WANT(seen[j] == seen[0]);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Others see at once what one has written, without a sync. */
    for (int i = 0; i < ranks; i++) {
        MPI_Offset size;
        if (i == rank)
            OK(MPI_File_write_at(file, 20000 + i * 10, "0123456789", 10, MPI_BYTE, &status));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_get_size(file, &size));
        WANT(size == 20000 + i * 10 + 10);
        OK(MPI_File_read_at(file, 20000 + i * 10, seen, 20, MPI_BYTE, &status));
        WANT(count_of(&status) == 10 && !memcmp(seen, "0123456789", 10));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* The same bytes of all processes by a view with gaps. */
    OK(MPI_Type_vector(90, 50, 100, MPI_BYTE, &gaps));
    OK(MPI_Type_create_resized(gaps, 0, LONG, &comb));
    OK(MPI_Type_commit(&comb));
    OK(MPI_File_set_view(file, 100, MPI_BYTE, comb, "native", MPI_INFO_NULL));
    memset(buffer, rank + 1, LONG);
    for (int i = 0; i < 10; i++) {
        OK(MPI_File_write_at_all(file, 0, buffer, 4500, MPI_BYTE, &status));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_read_at_all(file, 0, seen, 4500, MPI_BYTE, &status));
        for (int j = 1; j < 4500; j++)
            WANT(seen[j] == seen[0]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    memset(buffer, 7, LONG);
    if (rank == 0)
        OK(MPI_File_write_at(file, 100, buffer, LONG, MPI_BYTE, &status));
    OK(MPI_Type_free(&gaps));
    OK(MPI_Type_free(&comb));
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
