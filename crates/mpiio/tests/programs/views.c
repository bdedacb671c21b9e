/* Views of many datatypes, memory of many datatypes, collective and not. All verified by another
 * view, and the whole file by who compares it. */
#include "check.h"

enum { SIDE = 60 };

static MPI_File file;

static int *numbers(int count, int salt) {
    int *made = malloc(sizeof *made * (size_t)count);
    for (int i = 0; i < count; i++)
        made[i] = salt * 1000000 + rank * 100000 + i;
    return made;
}

/* Writes and reads so many ints through a view, twice over. */
static void through(MPI_Datatype filetype, MPI_Offset displacement, int count, int collective, int salt) {
    MPI_Status status;
    int *out = numbers(2 * count, salt), *in = calloc((size_t)(2 * count), sizeof *in);
    OK(MPI_File_set_view(file, displacement, MPI_INT, filetype, "native", MPI_INFO_NULL));
    for (int half = 0; half < 2; half++) {
        int *from = out + half * count;
        if (collective)
            OK(MPI_File_write_all(file, from, count, MPI_INT, &status));
        else
            OK(MPI_File_write(file, from, count, MPI_INT, &status));
        WANT(count_of(&status) == count * (int)sizeof(int));
    }
    MPI_Offset at;
    OK(MPI_File_get_position(file, &at));
    WANT(at == 2 * count);
    MPI_Barrier(MPI_COMM_WORLD);
    if (collective)
        OK(MPI_File_read_at_all(file, 0, in, 2 * count, MPI_INT, &status));
    else
        OK(MPI_File_read_at(file, 0, in, 2 * count, MPI_INT, &status));
    WANT(count_of(&status) == 2 * count * (int)sizeof(int));
    WANT(!memcmp(in, out, sizeof *in * (size_t)(2 * count)));
    OK(MPI_File_sync(file));
    free(out);
    free(in);
}

/* Memory that is not in one piece. */
static void memory(void) {
    MPI_Status status;
    MPI_Datatype columns, pair, both;
    MPI_Aint extent = 24;
    double grid[10][8], back[10][8];
    struct { short a; int b; } pairs[50], seen[50];
    memset(pairs, 0, sizeof pairs);
    memset(seen, 0, sizeof seen);
    OK(MPI_Type_vector(10, 2, 8, MPI_DOUBLE, &columns));
    OK(MPI_Type_commit(&columns));
    for (int i = 0; i < 80; i++) {
        grid[i / 8][i % 8] = rank * 100 + i;
        back[i / 8][i % 8] = -1;
    }
    OK(MPI_File_set_view(file, 100000, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
    OK(MPI_File_write_at_all(file, rank * 20, &grid[0][3], 1, columns, &status));
    WANT(count_of(&status) == 160);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at(file, rank * 20, &back[0][3], 1, columns, &status));
    for (int i = 0; i < 80; i++)
        WANT(back[i / 8][i % 8] == (i % 8 == 3 || i % 8 == 4 ? grid[i / 8][i % 8] : -1));
    for (int i = 0; i < 50; i++) {
        pairs[i].a = (short)(i + rank);
        pairs[i].b = i * 7 + rank;
    }
    int ones[2] = {1, 1};
    MPI_Aint members[2] = {0, 4};
    MPI_Datatype kinds[2] = {MPI_SHORT, MPI_INT};
    OK(MPI_Type_create_struct(2, ones, members, kinds, &pair));
    OK(MPI_Type_commit(&pair));
    OK(MPI_File_set_view(file, 200000, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_write_at(file, rank * 300, pairs, 50, pair, &status));
    WANT(count_of(&status) == 300);
    OK(MPI_File_read_at(file, rank * 300, seen, 50, pair, &status));
    for (int i = 0; i < 50; i++)
        WANT(seen[i].a == pairs[i].a && seen[i].b == pairs[i].b);
    /* A struct of two members, in reverse order in memory. */
    int lengths[2] = {1, 2};
    MPI_Aint places[2] = {16, 0};
    MPI_Datatype types[2] = {MPI_INT, MPI_INT}, record;
    int in[12], out[12];
    OK(MPI_Type_create_struct(2, lengths, places, types, &record));
    OK(MPI_Type_create_resized(record, 0, extent, &both));
    OK(MPI_Type_commit(&both));
    for (int i = 0; i < 12; i++) {
        out[i] = rank * 50 + i;
        in[i] = -5;
    }
    OK(MPI_File_write_at(file, 5000 + rank * 24, out, 2, both, &status));
    OK(MPI_File_read_at(file, 5000 + rank * 24, in, 2, both, &status));
    WANT(count_of(&status) == 24);
    for (int i = 0; i < 12; i++)
        WANT(in[i] == (i % 6 == 4 || i % 6 < 2 ? out[i] : -5));
    OK(MPI_Type_free(&columns));
    OK(MPI_Type_free(&pair));
    OK(MPI_Type_free(&record));
    OK(MPI_Type_free(&both));
}

int main(int argc, char **argv) {
    MPI_Datatype type, inner;
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    /* What is between blocks is known: some MPIs write more than they were given. */
    OK(MPI_File_set_size(file, 250000));
    for (int collective = 0; collective < 2; collective++) {
        int salt = 10 * collective;
        /* Rows of a square, dealt out. */
        OK(MPI_Type_vector(SIDE / ranks, SIDE, SIDE * ranks, MPI_INT, &inner));
        OK(MPI_Type_create_resized(inner, 0, SIDE * SIDE * sizeof(int), &type));
        OK(MPI_Type_commit(&type));
        through(type, (MPI_Offset)rank * SIDE * (MPI_Offset)sizeof(int), SIDE * SIDE / ranks, collective, salt + 1);
        OK(MPI_Type_free(&type));
        OK(MPI_Type_free(&inner));
        /* Columns, as parts of an array, in both orders. */
        for (int order = 0; order < 2; order++) {
            int sizes[2] = {SIDE, SIDE}, parts[2] = {SIDE, SIDE / ranks}, starts[2] = {0, rank * SIDE / ranks};
            OK(MPI_Type_create_subarray(2, sizes, parts, starts, order ? MPI_ORDER_FORTRAN : MPI_ORDER_C, MPI_INT, &type));
            OK(MPI_Type_commit(&type));
            through(type, 40000, SIDE * SIDE / ranks, collective, salt + 2 + order);
            OK(MPI_Type_free(&type));
        }
        /* Blocks of a distributed array: rows by block, columns cyclic. */
        int sizes[2] = {SIDE, SIDE}, grid[2] = {2, ranks / 2}, arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, 3};
        int ways[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, bytes;
        OK(MPI_Type_create_darray(ranks, rank, 2, sizes, ways, arguments, grid, MPI_ORDER_C, MPI_INT, &type));
        OK(MPI_Type_commit(&type));
        OK(MPI_Type_size(type, &bytes));
        through(type, 80000, bytes / (int)sizeof(int), collective, salt + 4);
        OK(MPI_Type_free(&type));
        /* Blocks at odd places, in bytes and in ints, of a nested type. */
        int lengths[3] = {1, 2, 1};
        MPI_Aint places[3] = {rank * 20, 200 + rank * 20, 400 + rank * 20};
        OK(MPI_Type_create_hindexed(3, lengths, places, MPI_INT, &inner));
        OK(MPI_Type_create_resized(inner, 0, 500, &type));
        OK(MPI_Type_commit(&type));
        through(type, 120000, 40, collective, salt + 5);
        OK(MPI_Type_free(&type));
        OK(MPI_Type_free(&inner));
        int at[3] = {rank, 10 + rank, 20 + rank};
        OK(MPI_Type_create_indexed_block(3, 1, at, MPI_INT, &inner));
        OK(MPI_Type_create_resized(inner, 0, 30 * sizeof(int), &type));
        OK(MPI_Type_commit(&type));
        through(type, 160000, 30, collective, salt + 6);
        OK(MPI_Type_free(&type));
        OK(MPI_Type_free(&inner));
    }
    memory();
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
