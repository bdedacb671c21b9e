/* A checkpoint as FLASH I/O writes it (figure 6): flash FILE MODE EDGE
 *
 * About 80 blocks of each process, EDGE cells along each edge of a block, 24 variables. By HDF5: what
 * describes the blocks, then each variable, one after the other; a process writes its blocks behind
 * those of the process before, by itself. The inside of the blocks is copied to a buffer first, as
 * FLASH I/O does, so that each is one piece; guard cells, the two plot files and run-time parameters
 * are left out. */
#include "common.h"

#include <hdf5.h>

#define WELL(call) WANT((call) >= 0)

enum { VARIABLES = 24 };

static int64_t all, mine, start;
static hsize_t edge;
static hid_t file, transfer;

/* A dataset that was written: where it is in the file, and how its numbers follow from their places. */
static struct {
    haddr_t at;
    int64_t doubles;
} written[VARIABLES + 3];
static int sets;

static hid_t opened(hid_t id) {
    WANT(id >= 0);
    return id;
}

static int64_t blocks(int of) { return 78 + of * 7 % 5; }

static double value(int set, int64_t place) { return (double)place * 0.5 + set * 1e9; }

/* A dataset of so many doubles a block. Gives the bytes that this process has written. */
static int64_t dataset(const char *name, int dimensions, const hsize_t *more) {
    hsize_t size[4] = {(hsize_t)all}, from[4] = {(hsize_t)start}, count[4] = {(hsize_t)mine};
    int64_t each = 1;
    for (int i = 1; i < dimensions; i++) {
        size[i] = count[i] = more[i - 1];
        each *= (int64_t)more[i - 1];
    }
    double *numbers = some((size_t)(mine * each) * sizeof *numbers);
    for (int64_t i = 0; i < mine * each; i++)
        numbers[i] = value(sets, start * each + i);
    hid_t where = opened(H5Screate_simple(dimensions, size, NULL));
    hid_t memory = opened(H5Screate_simple(dimensions, count, NULL));
    hid_t set = opened(H5Dcreate2(file, name, H5T_NATIVE_DOUBLE, where, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    WELL(H5Sselect_hyperslab(where, H5S_SELECT_SET, from, NULL, count, NULL));
    WELL(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, where, transfer, numbers));
    written[sets].at = H5Dget_offset(set);
    written[sets].doubles = all * each;
    WANT(written[sets++].at != HADDR_UNDEF);
    WELL(H5Dclose(set));
    WELL(H5Sclose(memory));
    WELL(H5Sclose(where));
    free(numbers);
    return mine * each * 8;
}

static void verify(const char *path) {
    static double numbers[8192];
    int made = open(path, O_RDONLY);
    WANT(made >= 0);
    for (int set = 0; set < sets; set++)
        for (int64_t done = 0; done < written[set].doubles; done += 8192) {
            int64_t left = written[set].doubles - done < 8192 ? written[set].doubles - done : 8192;
            system_read(made, numbers, (size_t)left * 8, (off_t)written[set].at + done * 8);
            for (int64_t i = 0; i < left; i++)
                WANT(numbers[i] == value(set, done + i));
        }
    close(made);
}

int main(int argc, char **argv) {
    begin(&argc, &argv, 4);
    WANT(!locks);
    edge = (hsize_t)number(argv[3]);
    for (int i = 0; i < ranks; i++) {
        start += i < rank ? blocks(i) : 0;
        all += blocks(i);
    }
    mine = blocks(rank);
    hid_t by_mpi = opened(H5Pcreate(H5P_FILE_ACCESS));
    WELL(H5Pset_fapl_mpio(by_mpi, MPI_COMM_WORLD, MPI_INFO_NULL));
    transfer = opened(H5Pcreate(H5P_DATASET_XFER));
    WELL(H5Pset_dxpl_mpio(transfer, H5FD_MPIO_INDEPENDENT));
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    file = opened(H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, by_mpi));
    if (atomic_mode)
        WELL(H5Fset_mpi_atomicity(file, 1));
    hsize_t three[3] = {3, 2}, cells[3] = {edge, edge, edge};
    int64_t bytes = dataset("coordinates", 2, three);
    bytes += dataset("block size", 2, three);
    bytes += dataset("bounding box", 3, three);
    for (int i = 0; i < VARIABLES; i++) {
        char name[8];
        snprintf(name, sizeof name, "var%02d", i);
        bytes += dataset(name, 4, cells);
    }
    WELL(H5Fclose(file));
    report(MPI_Wtime() - begun, bytes);
    if (!rank)
        verify(argv[1]);
    WELL(H5Pclose(transfer));
    WELL(H5Pclose(by_mpi));
    MPI_Finalize();
    return 0;
}
