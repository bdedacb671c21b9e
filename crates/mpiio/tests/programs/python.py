#!/usr/bin/python3
"""MPI-IO from Python by mpi4py: views, pointers of both kinds, collective, nonblocking, shared.
Debian's interpreter, as Debian's mpi4py is of it."""

import sys
from array import array

from mpi4py import MPI

ROWS, COLUMNS = 40, 64
world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()


def want(what, text):
    if not what:
        print(f"process {rank}: not {text}", file=sys.stderr, flush=True)
        world.Abort(1)


def numbers(who, salt, count=ROWS * COLUMNS):
    return array("i", (salt * 1000000 + who * 10000 + at for at in range(count)))


def columns(file, who):
    wide = COLUMNS // ranks
    part = MPI.INT.Create_subarray([ROWS * ranks, COLUMNS], [ROWS * ranks, wide], [0, who * wide])
    part.Commit()
    file.Set_view(4096, MPI.INT, part)
    part.Free()
    return ROWS * ranks * wide


def main():
    file = MPI.File.Open(world, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_RDWR)
    file.Write_at(rank * 1024, bytearray(b"%04d" % rank * 256))
    count = columns(file, rank)
    file.Write_all(numbers(rank, 1, count))
    file.Sync()
    world.Barrier()
    other = (rank + 1) % ranks
    back = array("i", bytes(4 * columns(file, other)))
    file.Read_all(back)
    want(back == numbers(other, 1, count), "what another one wrote by columns")
    # Rows, posted; then each of its own, over what is there.
    end = 4096 + 4 * ROWS * COLUMNS * ranks
    file.Set_view(end, MPI.INT)
    request = file.Iwrite_at(rank * ROWS * COLUMNS, numbers(rank, 2))
    request.Wait()
    file.Sync()
    world.Barrier()
    back = array("i", bytes(4 * ROWS * COLUMNS))
    file.Seek(other * ROWS * COLUMNS)
    file.Iread(back).Wait()
    want(back == numbers(other, 2), "what another one has posted")
    want(file.Get_position() == (other + 1) * ROWS * COLUMNS, "where the reading ended")
    # In order of the processes.
    file.Set_view(0, MPI.BYTE)
    size = file.Get_size()
    want(size == end + 4 * ROWS * COLUMNS * ranks, "the length")
    world.Barrier()
    file.Seek_shared(size)
    file.Write_ordered(bytearray(b"process %d\n" % rank))
    file.Sync()
    world.Barrier()
    if rank == 0:
        text = bytearray(10 * ranks)
        file.Read_at(size, text)
        want(text == b"".join(b"process %d\n" % it for it in range(ranks)), "the order")
        print("verified", flush=True)
    file.Close()


main()
