/* Counts that are no ints, where MPI has them, and types that were made with them. */
#include "check.h"

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Status status;
    static int out[4000], in[4000];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (int i = 0; i < 4000; i++)
        out[i] = rank * 10000 + i;
#if MPI_VERSION >= 4
    MPI_Datatype comb, part, places, record;
    MPI_Request request;
    OK(MPI_File_write_at_c(file, rank * 16000, out, 4000, MPI_INT, &status));
    OK(MPI_File_iread_at_c(file, rank * 16000, in, 4000, MPI_INT, &request));
    OK(MPI_Wait(&request, &status));
    WANT(!memcmp(in, out, sizeof in));
    MPI_Barrier(MPI_COMM_WORLD);
    /* MPICH's own MPI-IO can't have types that were made with large counts. */
    if (getenv("FOREBAY_TEST_LIBRARY")) {
        MPI_Count sizes[2] = {20, 20}, parts[2] = {20, 5}, starts[2] = {0, 10};
        MPI_Count lengths[2] = {2, 3}, at[2] = {0, 200};
        MPI_Datatype types[2] = {MPI_INT, MPI_INT};
        OK(MPI_Type_vector_c(10, 5, 8, MPI_INT, &comb));
        OK(MPI_Type_create_subarray_c(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &part));
        OK(MPI_Type_create_hindexed_c(2, lengths, at, MPI_INT, &places));
        OK(MPI_Type_create_struct_c(2, lengths, at, types, &record));
    } else {
        int sizes[2] = {20, 20}, parts[2] = {20, 5}, starts[2] = {0, 10}, lengths[2] = {2, 3};
        MPI_Aint at[2] = {0, 200};
        MPI_Datatype types[2] = {MPI_INT, MPI_INT};
        OK(MPI_Type_vector(10, 5, 8, MPI_INT, &comb));
        OK(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &part));
        OK(MPI_Type_create_hindexed(2, lengths, at, MPI_INT, &places));
        OK(MPI_Type_create_struct(2, lengths, at, types, &record));
    }
    MPI_Datatype all[4] = {comb, part, places, record};
    for (int i = 0; i < 4; i++) {
        OK(MPI_Type_commit(&all[i]));
        OK(MPI_File_write_at_all_c(file, 64000 + i * 4000 + rank * 1000, out, 1, all[i], &status));
        /* Another process may be the one that writes it. */
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_sync(file));
        memset(in, 0, sizeof in);
        OK(MPI_File_read_at_c(file, 64000 + i * 4000 + rank * 1000, in, 1, all[i], &status));
        for (int j = 0; j < 4000; j++)
            WANT(in[j] == 0 || in[j] == out[j]);
        MPI_Type_free(&all[i]);
    }
#else
    OK(MPI_File_write_at_all(file, rank * 16000, out, 4000, MPI_INT, &status));
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    OK(MPI_File_read_at(file, rank * 16000, in, 4000, MPI_INT, &status));
    WANT(!memcmp(in, out, sizeof in));
#endif
    /* A call that is larger than a small pool, and one than all pools. */
    int many = 3 << 20;
    unsigned char *much = malloc((size_t)many);
    for (int i = 0; i < many; i++)
        much[i] = mark(i, rank);
    OK(MPI_File_write_at_all(file, 100001 + (MPI_Offset)rank * many, much, many, MPI_BYTE, &status));
    WANT(count_of(&status) == many);
    OK(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_sync(file));
    int other = (rank + 1) % ranks;
    OK(MPI_File_read_at(file, 100001 + (MPI_Offset)other * many, much, many, MPI_BYTE, &status));
    WANT(count_of(&status) == many);
    for (int i = 0; i < many; i++)
        WANT(much[i] == mark(i, other));
    free(much);
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
