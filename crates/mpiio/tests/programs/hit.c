/* Rank 0 writes pages; rank 1 reads each of them once, which is a hit in another one's pool, and looks
 * at every byte. With FOREBAY_TEST_TIMES it says to stderr how long that took; FOREBAY_TEST_PAGES and
 * FOREBAY_TEST_PAGE are how many and how large. Ranks from 2 on compute until rank 1 has finished, so
 * that all processors are busy. */
#include <unistd.h>

#include "check.h"

static int by_value(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

int main(int argc, char **argv) {
    MPI_File file;
    MPI_Request arrived;
    begin(&argc, &argv);
    long pages = setting("FOREBAY_TEST_PAGES", 64), length = setting("FOREBAY_TEST_PAGE", 65536);
    unsigned char *bytes = malloc((size_t)length);
    double *times = malloc(sizeof *times * (size_t)pages);
    char text[32];
    MPI_Info info;
    MPI_Info_create(&info);
    snprintf(text, sizeof text, "%ld", length);
    MPI_Info_set(info, "forebay_page_size", text);
    snprintf(text, sizeof text, "%ld", length * (pages + 8));
    MPI_Info_set(info, "forebay_pool_size", text);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file));
    MPI_Info_free(&info);
    if (rank == 0)
        for (long page = 0; page < pages; page++) {
            for (long at = 0; at < length; at++)
                bytes[at] = mark(at, page);
            OK(MPI_File_write_at(file, page * length, bytes, (int)length, MPI_BYTE,
                                 MPI_STATUS_IGNORE));
        }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        for (long page = 0; page < pages; page++) {
            double begin = MPI_Wtime();
            OK(MPI_File_read_at(file, page * length, bytes, (int)length, MPI_BYTE,
                                MPI_STATUS_IGNORE));
            times[page] = MPI_Wtime() - begin;
            for (long at = 0; at < length; at++)
                WANT(bytes[at] == mark(at, page));
        }
        qsort(times, (size_t)pages, sizeof *times, by_value);
        if (getenv("FOREBAY_TEST_TIMES"))
            fprintf(stderr, "hits of %ld bytes: p50 %.1f us, p90 %.1f us, p99 %.1f us\n", length,
                    times[pages / 2] * 1e6, times[pages * 9 / 10] * 1e6,
                    times[pages * 99 / 100] * 1e6);
    }
    int done = 0;
    volatile double computed = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &arrived);
    while (!done) {
        /* A millisecond or so of work, or none. */
        if (rank >= 2)
            for (int step = 0; step < 300000; step++)
                computed += step * 0.5;
        else if (rank == 0)
            usleep(1000);
        MPI_Test(&arrived, &done, MPI_STATUS_IGNORE);
    }
    OK(MPI_File_close(&file));
    if (rank == 0)
        printf("%ld pages of %ld bytes\n", pages, length);
    free(times);
    free(bytes);
    MPI_Finalize();
    return 0;
}
