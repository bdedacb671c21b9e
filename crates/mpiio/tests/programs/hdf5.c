/* What HDF5 does by MPI-IO: datasets of several layouts that all processes write, collectively and
 * not, an extension, a file that is opened again and changed, and what is read by others. */
#include "check.h"

#include <hdf5.h>

#define WELL(call) WANT((call) >= 0)

enum { ROWS = 12, COLUMNS = 96, CHUNK = 24 };

static hid_t file, collective, independent;

static hid_t opened(hid_t id) {
    WANT(id >= 0);
    return id;
}

static int number(hsize_t row, hsize_t column, int salt) {
    return (int)(row * 100000 + column) ^ salt * 7919;
}

/* Without times: they differ from run to run. */
static hid_t dataset(const char *name, hsize_t rows, hsize_t columns, hsize_t chunk, int grows) {
    hsize_t size[2] = {rows, columns}, most[2] = {grows ? H5S_UNLIMITED : rows, columns};
    hsize_t piece[2] = {chunk, chunk};
    hid_t space = opened(H5Screate_simple(2, size, most)), how = opened(H5Pcreate(H5P_DATASET_CREATE));
    WELL(H5Pset_obj_track_times(how, 0));
    if (chunk)
        WELL(H5Pset_chunk(how, 2, piece));
    hid_t made = opened(H5Dcreate2(file, name, H5T_STD_I32LE, space, H5P_DEFAULT, how, H5P_DEFAULT));
    WELL(H5Pclose(how));
    WELL(H5Sclose(space));
    return made;
}

/* One part of a dataset: writes it, or reads and verifies it. */
static void part(hid_t set, const hsize_t *start, const hsize_t *count, hid_t way, int writes, int salt) {
    hsize_t total = count[0] * count[1];
    int *numbers = malloc(total * sizeof *numbers);
    for (hsize_t i = 0; i < total; i++)
        numbers[i] = writes ? number(start[0] + i / count[1], start[1] + i % count[1], salt) : -1;
    hid_t where = opened(H5Dget_space(set)), memory = opened(H5Screate_simple(2, count, NULL));
    WELL(H5Sselect_hyperslab(where, H5S_SELECT_SET, start, NULL, count, NULL));
    if (writes)
        WELL(H5Dwrite(set, H5T_NATIVE_INT, memory, where, way, numbers));
    else
        WELL(H5Dread(set, H5T_NATIVE_INT, memory, where, way, numbers));
    for (hsize_t i = 0; !writes && i < total; i++)
        WANT(numbers[i] == number(start[0] + i / count[1], start[1] + i % count[1], salt));
    WELL(H5Sclose(memory));
    WELL(H5Sclose(where));
    free(numbers);
}

/* The rows, or the columns, of a process. */
static void rows(hid_t set, int who, hid_t way, int writes, int salt) {
    hsize_t start[2] = {(hsize_t)who * ROWS, 0}, count[2] = {ROWS, COLUMNS};
    part(set, start, count, way, writes, salt);
}

static void columns(hid_t set, int who, hid_t way, int writes, int salt) {
    hsize_t wide = COLUMNS / (hsize_t)ranks;
    hsize_t start[2] = {0, (hsize_t)who * wide}, count[2] = {(hsize_t)ranks * ROWS, wide};
    part(set, start, count, way, writes, salt);
}

static void attribute(hid_t set, const char *name, const char *text) {
    hid_t type = opened(H5Tcopy(H5T_C_S1)), space = opened(H5Screate(H5S_SCALAR));
    WELL(H5Tset_size(type, strlen(text)));
    hid_t made = opened(H5Acreate2(set, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    WELL(H5Awrite(made, type, text));
    WELL(H5Aclose(made));
    WELL(H5Sclose(space));
    WELL(H5Tclose(type));
}

static void write_all(void) {
    hsize_t total = (hsize_t)ranks * ROWS, more[2] = {2 * total, COLUMNS};
    hid_t plain = dataset("plain", total, COLUMNS, 0, 0);
    rows(plain, rank, collective, 1, 1);
    hid_t striped = dataset("striped", total, COLUMNS, 0, 0);
    columns(striped, rank, independent, 1, 2);
    hid_t mixed = dataset("mixed", total, COLUMNS, 0, 0);
    columns(mixed, rank, collective, 1, 3);
    hid_t chunked = dataset("chunked", total, COLUMNS, CHUNK, 1);
    columns(chunked, rank, collective, 1, 4);
    attribute(plain, "unit", "millimetres");
    WELL(H5Fflush(file, H5F_SCOPE_GLOBAL));
    MPI_Barrier(MPI_COMM_WORLD);
    rows(striped, (rank + 1) % ranks, independent, 0, 2);
    rows(mixed, (rank + 1) % ranks, collective, 0, 3);
    WELL(H5Dset_extent(chunked, more));
    hsize_t start[2] = {total + (hsize_t)rank * ROWS, 0}, count[2] = {ROWS, COLUMNS};
    part(chunked, start, count, collective, 1, 4);
    WELL(H5Dclose(chunked));
    WELL(H5Dclose(mixed));
    WELL(H5Dclose(striped));
    WELL(H5Dclose(plain));
}

/* In a file that is open again. */
static void change_and_read(void) {
    hid_t plain = opened(H5Dopen2(file, "plain", H5P_DEFAULT));
    hid_t chunked = opened(H5Dopen2(file, "chunked", H5P_DEFAULT));
    columns(plain, (rank + 1) % ranks, collective, 0, 1);
    columns(chunked, (rank + 1) % ranks, collective, 0, 4);
    MPI_Barrier(MPI_COMM_WORLD);
    rows(plain, (rank + 1) % ranks, independent, 1, 5);
    WELL(H5Fflush(file, H5F_SCOPE_GLOBAL));
    MPI_Barrier(MPI_COMM_WORLD);
    columns(plain, rank, collective, 0, 5);
    hid_t group = opened(H5Gcreate2(file, "later", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    attribute(group, "note", "made when the file was there already");
    WELL(H5Gclose(group));
    WELL(H5Dclose(chunked));
    WELL(H5Dclose(plain));
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    hid_t by_mpi = opened(H5Pcreate(H5P_FILE_ACCESS));
    WELL(H5Pset_fapl_mpio(by_mpi, MPI_COMM_WORLD, MPI_INFO_NULL));
    collective = opened(H5Pcreate(H5P_DATASET_XFER));
    WELL(H5Pset_dxpl_mpio(collective, H5FD_MPIO_COLLECTIVE));
    independent = opened(H5Pcreate(H5P_DATASET_XFER));
    WELL(H5Pset_dxpl_mpio(independent, H5FD_MPIO_INDEPENDENT));
    file = opened(H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, by_mpi));
    write_all();
    WELL(H5Fclose(file));
    file = opened(H5Fopen(argv[1], H5F_ACC_RDWR, by_mpi));
    change_and_read();
    WELL(H5Fclose(file));
    WELL(H5Pclose(independent));
    WELL(H5Pclose(collective));
    WELL(H5Pclose(by_mpi));
    MPI_Finalize();
    return 0;
}
