/* Calls that are begun and waited for later, many at once, and the two halves of split ones. */
#include "check.h"

enum { PIECE = 700, PIECES = 40 };

static MPI_File file;

static void requests(void) {
    static unsigned char out[PIECES][PIECE], in[PIECES][PIECE];
    MPI_Request pending[PIECES];
    MPI_Status states[PIECES];
    for (int way = 0; way < 4; way++) {
        OK(MPI_File_seek(file, (MPI_Offset)rank * PIECES * PIECE, MPI_SEEK_SET));
        for (int i = 0; i < PIECES; i++) {
            MPI_Offset at = ((MPI_Offset)rank * PIECES + i) * PIECE;
            for (int j = 0; j < PIECE; j++)
                out[i][j] = mark(at + j, way);
            switch (way) {
            case 0: OK(MPI_File_iwrite_at(file, at, out[i], PIECE, MPI_BYTE, &pending[i])); break;
            case 1: OK(MPI_File_iwrite(file, out[i], PIECE, MPI_BYTE, &pending[i])); break;
            case 2: OK(MPI_File_iwrite_at_all(file, at, out[i], PIECE, MPI_BYTE, &pending[i])); break;
            default: OK(MPI_File_iwrite_all(file, out[i], PIECE, MPI_BYTE, &pending[i]));
            }
        }
        OK(MPI_Waitall(PIECES, pending, states));
        for (int i = 0; i < PIECES; i++)
            WANT(count_of(&states[i]) == PIECE && pending[i] == MPI_REQUEST_NULL);
        OK(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        int other = (rank + 1) % ranks, done = 0;
        OK(MPI_File_seek(file, (MPI_Offset)other * PIECES * PIECE, MPI_SEEK_SET));
        memset(in, 0, sizeof in);
        for (int i = 0; i < PIECES; i++) {
            MPI_Offset at = ((MPI_Offset)other * PIECES + i) * PIECE;
            switch (way) {
            case 0: OK(MPI_File_iread_at(file, at, in[i], PIECE, MPI_BYTE, &pending[i])); break;
            case 1: OK(MPI_File_iread(file, in[i], PIECE, MPI_BYTE, &pending[i])); break;
            case 2: OK(MPI_File_iread_at_all(file, at, in[i], PIECE, MPI_BYTE, &pending[i])); break;
            default: OK(MPI_File_iread_all(file, in[i], PIECE, MPI_BYTE, &pending[i]));
            }
        }
        while (done < PIECES) {
            int which;
            MPI_Status status;
            OK(MPI_Waitany(PIECES, pending, &which, &status));
            WANT(count_of(&status) == PIECE);
            for (int j = 0; j < PIECE; j++)
                WANT(in[which][j] == mark(((long)other * PIECES + which) * PIECE + j, way));
            done++;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Into memory with gaps, beyond the end, and by the shared pointer. */
static void odd_ones(void) {
    MPI_Datatype gaps;
    MPI_Request request;
    MPI_Status status;
    MPI_Offset size;
    unsigned char memory[400];
    long all, sum;
    OK(MPI_Type_vector(100, 2, 4, MPI_BYTE, &gaps));
    OK(MPI_Type_commit(&gaps));
    memset(memory, 9, sizeof memory);
    OK(MPI_File_iread_at(file, 50, memory, 1, gaps, &request));
    OK(MPI_Type_free(&gaps));
    OK(MPI_Wait(&request, &status));
    WANT(count_of(&status) == 200);
    for (int i = 0; i < 398; i++)
        WANT(memory[i] == (i % 4 < 2 ? mark(50 + i / 4 * 2 + i % 4, 3) : 9));
    OK(MPI_File_get_size(file, &size));
    OK(MPI_File_iread_at(file, size - 5, memory, 50, MPI_BYTE, &request));
    OK(MPI_Wait(&request, &status));
    WANT(count_of(&status) == 5);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_iread_shared(file, memory, 1, MPI_BYTE, &request));
    OK(MPI_Wait(&request, &status));
    sum = memory[0];
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; i++)
        all -= mark(i, 3);
    WANT(all == 0);
    memory[0] = 123;
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_iwrite_shared(file, memory, 1, MPI_BYTE, &request));
    OK(MPI_Wait(&request, &status));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void halves(void) {
    unsigned char out[PIECE], in[PIECE];
    MPI_Status status;
    MPI_Offset base = (MPI_Offset)ranks * PIECES * PIECE, at = base + rank * PIECE;
    for (int way = 0; way < 3; way++) {
        for (int j = 0; j < PIECE; j++)
            out[j] = mark(at + j, 10 + way);
        memset(in, 0, sizeof in);
        OK(MPI_File_seek(file, at, MPI_SEEK_SET));
        OK(MPI_File_seek_shared(file, base, MPI_SEEK_SET));
        switch (way) {
        case 0:
            OK(MPI_File_write_at_all_begin(file, at, out, PIECE, MPI_BYTE));
            OK(MPI_File_write_at_all_end(file, out, &status));
            break;
        case 1:
            OK(MPI_File_write_all_begin(file, out, PIECE, MPI_BYTE));
            OK(MPI_File_write_all_end(file, out, &status));
            break;
        default:
            OK(MPI_File_write_ordered_begin(file, out, PIECE, MPI_BYTE));
            OK(MPI_File_write_ordered_end(file, out, &status));
        }
        WANT(count_of(&status) == PIECE);
        OK(MPI_File_sync(file));
        OK(MPI_File_seek(file, at, MPI_SEEK_SET));
        OK(MPI_File_seek_shared(file, base, MPI_SEEK_SET));
        switch (way) {
        case 0:
            OK(MPI_File_read_at_all_begin(file, at, in, PIECE, MPI_BYTE));
            OK(MPI_File_read_at_all_end(file, in, &status));
            break;
        case 1:
            OK(MPI_File_read_all_begin(file, in, PIECE, MPI_BYTE));
            OK(MPI_File_read_all_end(file, in, &status));
            break;
        default:
            OK(MPI_File_read_ordered_begin(file, in, PIECE, MPI_BYTE));
            OK(MPI_File_read_ordered_end(file, in, &status));
        }
        WANT(count_of(&status) == PIECE);
        WANT(!memcmp(in, out, PIECE));
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    OK(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    requests();
    odd_ones();
    halves();
    OK(MPI_File_close(&file));
    MPI_Finalize();
    return 0;
}
