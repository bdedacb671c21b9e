/* Input and output as BTIO has it (figure 5): btio FILE MODE EDGE
 *
 * A cube of cells of five doubles, 64 along an edge in class A and 102 in class B. A square number
 * of processes, q * q: each has q boxes of the cube along a diagonal. 40 times the whole cube is
 * appended to the file by a collective call, then it is read back 40 times. What the processes
 * compute between, and the guard cells of their memory, are left out. */
#include "common.h"

enum { TIMES = 40, DOUBLES = 5 };

static int edge, root;

static int first_of(int part) { return part * edge / root; }

/* The number at a place of the cube, at a time. */
static double value(int64_t place, int time) { return (double)(place ^ 0x2a) + time * 0.125; }

/* The box of this process in a layer: where it begins and ends, in z, y, x. */
static void box(int layer, int *starts, int *sizes) {
    int parts[3] = {layer, (rank / root + layer) % root, (rank % root + layer) % root};
    for (int i = 0; i < 3; i++) {
        starts[i] = first_of(parts[i]);
        sizes[i] = first_of(parts[i] + 1) - starts[i];
    }
}

/* Fills memory, or compares it. Gives the doubles. */
static int64_t each(double *memory, int time, int fills) {
    int64_t at = 0;
    for (int layer = 0; layer < root; layer++) {
        int from[3], size[3];
        box(layer, from, size);
        for (int z = from[0]; z < from[0] + size[0]; z++)
            for (int y = from[1]; y < from[1] + size[1]; y++) {
                int64_t place = (((int64_t)z * edge + y) * edge + from[2]) * DOUBLES;
                for (int i = 0; memory && i < size[2] * DOUBLES; i++) {
                    if (fills)
                        memory[at + i] = value(place + i, time);
                    else
                        WANT(memory[at + i] == value(place + i, time));
                }
                at += (int64_t)size[2] * DOUBLES;
            }
    }
    return at;
}

/* The boxes in the cube. */
static MPI_Datatype view(void) {
    MPI_Datatype boxes[64], cell, whole;
    MPI_Aint places[64];
    int counts[64];
    WANT(root <= 64);
    OK(MPI_Type_contiguous(DOUBLES, MPI_DOUBLE, &cell));
    for (int layer = 0; layer < root; layer++) {
        int sizes[3] = {edge, edge, edge}, from[3], size[3];
        box(layer, from, size);
        OK(MPI_Type_create_subarray(3, sizes, size, from, MPI_ORDER_C, cell, &boxes[layer]));
        places[layer] = 0;
        counts[layer] = 1;
    }
    OK(MPI_Type_create_struct(root, counts, places, boxes, &whole));
    OK(MPI_Type_commit(&whole));
    for (int layer = 0; layer < root; layer++)
        OK(MPI_Type_free(&boxes[layer]));
    OK(MPI_Type_free(&cell));
    return whole;
}

/* A layer of the cube at a time. */
static void verify(const char *path) {
    int64_t layer = (int64_t)edge * edge * DOUBLES;
    double *numbers = some((size_t)layer * sizeof *numbers);
    int made = open(path, O_RDONLY);
    WANT(made >= 0 && lseek(made, 0, SEEK_END) == TIMES * layer * edge * 8);
    for (int time = 0; time < TIMES; time++)
        for (int64_t i = 0; i < edge; i++) {
            off_t at = (time * (int64_t)edge + i) * layer * 8;
            system_read(made, numbers, (size_t)layer * sizeof *numbers, at);
            for (int64_t j = 0; j < layer; j++)
                WANT(numbers[j] == value(i * layer + j, time));
        }
    close(made);
    free(numbers);
}

/* Writes or reads all times. Gives the seconds that the calls took. */
static double times(MPI_File file, double *memory, int64_t count, int writes) {
    MPI_Status status;
    double seconds = 0;
    for (int time = 0; time < TIMES; time++) {
        if (writes)
            each(memory, time, 1);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        if (writes)
            OK(MPI_File_write_at_all(file, time * count, memory, (int)count, MPI_DOUBLE, &status));
        else
            OK(MPI_File_read_at_all(file, time * count, memory, (int)count, MPI_DOUBLE, &status));
        seconds += MPI_Wtime() - start;
        if (!writes)
            each(memory, time, 0);
    }
    return seconds;
}

int main(int argc, char **argv) {
    MPI_File file;
    begin(&argc, &argv, 4);
    edge = (int)number(argv[3]);
    while ((root + 1) * (root + 1) <= ranks)
        root++;
    WANT(root * root == ranks && edge >= root && !locks);
    int64_t count = each(NULL, 0, 0);
    double *memory = some((size_t)count * sizeof *memory);
    MPI_Datatype filetype = view();
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    if (atomic_mode)
        OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_set_view(file, 0, MPI_DOUBLE, filetype, "native", MPI_INFO_NULL));
    double seconds = MPI_Wtime() - start;
    seconds += times(file, memory, count, 1);
    seconds += times(file, memory, count, 0);
    start = MPI_Wtime();
    OK(MPI_File_close(&file));
    seconds += MPI_Wtime() - start;
    report(seconds, 2 * TIMES * count * 8);
    OK(MPI_Type_free(&filetype));
    free(memory);
    if (!rank)
        verify(argv[1]);
    MPI_Finalize();
    return 0;
}
