/* The sliding window of figure 4: window FILE MODE PAGE_KIB FILE_MIB
 *
 * The file is there before, made of segments with two pages for each process. In each step a process
 * reads two pages, changes them and writes them back; in the next one it has the pages that its
 * neighbour had, until it has had all of the segment. The paper's listing is in a drawing, so that
 * the order is read from its text. */
#include "common.h"

enum { WORDS = 8192 };

static size_t pair;

static uint64_t before(uint64_t word) { return word * 0x9e3779b97f4a7c15u; }

static void make(const char *path, int64_t bytes) {
    static uint64_t words[WORDS];
    int made = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    WANT(made >= 0);
    for (int64_t done = 0; done < bytes; done += sizeof words) {
        for (int i = 0; i < WORDS; i++)
            words[i] = before((uint64_t)(done / 8 + i));
        size_t left = (size_t)(bytes - done) < sizeof words ? (size_t)(bytes - done) : sizeof words;
        WANT(write(made, words, left) == (ssize_t)left);
    }
    WANT(!fsync(made));
    WANT(!posix_fadvise(made, 0, 0, POSIX_FADV_DONTNEED));
    close(made);
}

/* A lock of these bytes, as the paper's comparison has around each call. */
static void hold(int descriptor, short how, off_t at) {
    struct flock lock = {.l_type = how, .l_whence = SEEK_SET, .l_start = at, .l_len = (off_t)pair};
    while (locks && fcntl(descriptor, F_SETLKW, &lock)) {}
}

static void change(MPI_File file, int descriptor, off_t at, uint64_t *words) {
    MPI_Status status;
    int count;
    hold(descriptor, F_RDLCK, at);
    OK(MPI_File_read_at(file, at, words, (int)pair, MPI_BYTE, &status));
    hold(descriptor, F_UNLCK, at);
    MPI_Get_count(&status, MPI_BYTE, &count);
    WANT(count == (int)pair);
    for (size_t i = 0; i < pair / 8; i++)
        words[i] += (uint64_t)rank + 1;
    hold(descriptor, F_WRLCK, at);
    OK(MPI_File_write_at(file, at, words, (int)pair, MPI_BYTE, &status));
    hold(descriptor, F_UNLCK, at);
}

static void verify(const char *path, int64_t bytes) {
    static uint64_t words[WORDS];
    uint64_t added = (uint64_t)ranks * (uint64_t)(ranks + 1) / 2;
    int made = open(path, O_RDONLY);
    WANT(made >= 0 && lseek(made, 0, SEEK_END) == bytes);
    for (int64_t done = 0; done < bytes; done += sizeof words) {
        size_t left = (size_t)(bytes - done) < sizeof words ? (size_t)(bytes - done) : sizeof words;
        system_read(made, words, left, done);
        for (size_t i = 0; i < left / 8; i++)
            WANT(words[i] == before((uint64_t)done / 8 + i) + added);
    }
    close(made);
}

int main(int argc, char **argv) {
    MPI_File file;
    int descriptor = -1;
    begin(&argc, &argv, 5);
    pair = 2 * (size_t)number(argv[3]) << 10;
    int64_t segment = (int64_t)pair * ranks, segments = (number(argv[4]) << 20) / segment;
    WANT(segments > 0);
    if (!rank)
        make(argv[1], segments * segment);
    uint64_t *words = some(pair);
    MPI_Barrier(MPI_COMM_WORLD);
    if (locks)
        WANT((descriptor = open(argv[1], O_RDWR)) >= 0);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    if (atomic_mode)
        OK(MPI_File_set_atomicity(file, 1));
    for (int64_t i = 0; i < segments; i++)
        for (int j = 0; j < ranks; j++) {
            change(file, descriptor, i * segment + (rank + j) % ranks * (int64_t)pair, words);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    OK(MPI_File_close(&file));
    report(MPI_Wtime() - start, 2 * segments * segment);
    if (!rank)
        verify(argv[1], segments * segment);
    MPI_Finalize();
    return 0;
}
