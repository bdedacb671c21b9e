/* What PnetCDF does by MPI-IO: fixed and record variables, collectively and not, blocking and
 * posted, strided and mapped, a header that grows, and what is read by others. */
#include "check.h"

#include <pnetcdf.h>

#define WELL(call)                                                               \
    do {                                                                         \
        int error = (call);                                                      \
        if (error != NC_NOERR)                                                   \
            fprintf(stderr, "%s\n", ncmpi_strerror(error));                      \
        WANT(error == NC_NOERR);                                                 \
    } while (0)

enum { ROWS = 10, COLUMNS = 48, RECORDS = 5 };

static int file, grid, points, record, name;

static double number(long row, long column, int salt) { return (double)(row * 1000 + column) + salt * 0.25; }

static void define(const char *path) {
    int rows, columns, times, shape[3];
    WELL(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    WELL(ncmpi_def_dim(file, "rows", (MPI_Offset)ranks * ROWS, &rows));
    WELL(ncmpi_def_dim(file, "columns", COLUMNS, &columns));
    WELL(ncmpi_def_dim(file, "time", NC_UNLIMITED, &times));
    shape[0] = rows, shape[1] = columns;
    WELL(ncmpi_def_var(file, "grid", NC_DOUBLE, 2, shape, &grid));
    WELL(ncmpi_def_var(file, "points", NC_INT, 1, &rows, &points));
    shape[0] = times, shape[1] = rows, shape[2] = columns;
    WELL(ncmpi_def_var(file, "record", NC_FLOAT, 3, shape, &record));
    shape[0] = times, shape[1] = rows;
    WELL(ncmpi_def_var(file, "name", NC_SHORT, 2, shape, &name));
    WELL(ncmpi_put_att_text(file, grid, "unit", 6, "metres"));
    WELL(ncmpi_enddef(file));
}

/* The columns of a process, all rows. */
static void columns(int who, int writes, int salt) {
    MPI_Offset wide = COLUMNS / ranks, start[2] = {0, who * wide}, count[2] = {(MPI_Offset)ranks * ROWS, wide};
    double *numbers = calloc((size_t)(count[0] * count[1]), sizeof *numbers);
    for (MPI_Offset i = 0; writes && i < count[0] * count[1]; i++)
        numbers[i] = number(i / wide, start[1] + i % wide, salt);
    if (writes)
        WELL(ncmpi_put_vara_double_all(file, grid, start, count, numbers));
    else
        WELL(ncmpi_get_vara_double_all(file, grid, start, count, numbers));
    for (MPI_Offset i = 0; i < count[0] * count[1]; i++)
        WANT(numbers[i] == number(i / wide, start[1] + i % wide, salt));
    free(numbers);
}

/* Every so many rows, by each process for itself. */
static void strided(int salt) {
    MPI_Offset start[1] = {rank}, count[1] = {ROWS}, stride[1] = {ranks};
    int numbers[ROWS];
    WELL(ncmpi_begin_indep_data(file));
    for (int i = 0; i < ROWS; i++)
        numbers[i] = (int)number(rank + (long)i * ranks, 0, 4 * salt);
    WELL(ncmpi_put_vars_int(file, points, start, count, stride, numbers));
    WELL(ncmpi_end_indep_data(file));
}

/* What another one has written for itself; that went by an open of its own. */
static void strided_back(int salt) {
    MPI_Offset start[1] = {(rank + 1) % ranks}, count[1] = {ROWS}, stride[1] = {ranks};
    int numbers[ROWS];
    WELL(ncmpi_get_vars_int_all(file, points, start, count, stride, numbers));
    for (int i = 0; i < ROWS; i++)
        WANT(numbers[i] == (int)number(start[0] + (long)i * ranks, 0, 4 * salt));
}

/* Posted, and done together. */
static void records(int first) {
    static float numbers[RECORDS][ROWS * COLUMNS];
    static short names[RECORDS][ROWS];
    int requests[2 * RECORDS], states[2 * RECORDS];
    for (int i = 0; i < RECORDS; i++) {
        MPI_Offset start[3] = {first + i, (MPI_Offset)rank * ROWS, 0}, count[3] = {1, ROWS, COLUMNS};
        for (int j = 0; j < ROWS * COLUMNS; j++)
            numbers[i][j] = (float)number(rank * ROWS + j / COLUMNS, j % COLUMNS, first + i);
        for (int j = 0; j < ROWS; j++)
            names[i][j] = (short)(rank * ROWS + j + 1000 * (first + i));
        WELL(ncmpi_iput_vara_float(file, record, start, count, numbers[i], &requests[2 * i]));
        WELL(ncmpi_iput_vara_short(file, name, start, count, names[i], &requests[2 * i + 1]));
    }
    WELL(ncmpi_wait_all(file, 2 * RECORDS, requests, states));
    for (int i = 0; i < 2 * RECORDS; i++)
        WELL(states[i]);
}

static void read_records(int last) {
    static float numbers[ROWS * COLUMNS];
    int who = (rank + 1) % ranks;
    for (int i = 0; i < last; i++) {
        MPI_Offset start[3] = {i, (MPI_Offset)who * ROWS, 0}, count[3] = {1, ROWS, COLUMNS};
        WELL(ncmpi_get_vara_float_all(file, record, start, count, numbers));
        for (int j = 0; j < ROWS * COLUMNS; j++)
            WANT(numbers[j] == (float)number(who * ROWS + j / COLUMNS, j % COLUMNS, i));
    }
}

/* The header has to grow, which moves all data. */
static void redefine(void) {
    static char text[4000];
    memset(text, 'x', sizeof text);
    WELL(ncmpi_redef(file));
    WELL(ncmpi_put_att_text(file, NC_GLOBAL, "history", sizeof text, text));
    WELL(ncmpi_enddef(file));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    define(argv[1]);
    columns(rank, 1, 1);
    strided(1);
    records(0);
    WELL(ncmpi_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    columns((rank + 1) % ranks, 0, 1);
    strided_back(1);
    read_records(RECORDS);
    strided(3);
    WELL(ncmpi_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    strided_back(3);
    redefine();
    columns((rank + 1) % ranks, 1, 2);
    records(RECORDS);
    WELL(ncmpi_close(file));
    /* Now it syncs by itself after each call. */
    WELL(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_WRITE | NC_SHARE, MPI_INFO_NULL, &file));
    columns(rank, 0, 2);
    strided(5);
    MPI_Barrier(MPI_COMM_WORLD);
    strided_back(5);
    read_records(2 * RECORDS);
    WELL(ncmpi_close(file));
    MPI_Finalize();
    return 0;
}
