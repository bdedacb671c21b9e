/* Reads and writes pages of all processes until it is killed. */
#include <unistd.h>

#include "check.h"

enum { PAGE = 65536, PAGES = 64 };

int main(int argc, char **argv) {
    MPI_File file;
    static unsigned char buffer[PAGE];
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    for (long turn = 0;; turn++) {
        MPI_Offset at = (turn * 7 + rank) % PAGES * PAGE;
        memset(buffer, (int)turn, PAGE);
        if (turn % 3)
            OK(MPI_File_read_at(file, at, buffer, PAGE, MPI_BYTE, MPI_STATUS_IGNORE));
        else
            OK(MPI_File_write_at(file, at, buffer, PAGE, MPI_BYTE, MPI_STATUS_IGNORE));
        if (turn == 200) {
            printf("process %ld\n", (long)getpid());
            fflush(stdout);
        }
    }
}
