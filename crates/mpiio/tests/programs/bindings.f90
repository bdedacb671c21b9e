! The three bindings of Fortran: mpif.h, use mpi, use mpi_f08. Each writes a part of the file, and
! reads what another process has written.
subroutine old(path, wrong)
  implicit none
  include 'mpif.h'
  character(len=*), intent(in) :: path
  integer, intent(inout) :: wrong
  integer :: file, rank, ranks, error, i, got, status(MPI_STATUS_SIZE)
  integer(kind=MPI_OFFSET_KIND) :: at
  integer :: numbers(1000)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, error)
  if (error /= MPI_SUCCESS) wrong = wrong + 1
  do i = 1, 1000
    numbers(i) = rank * 1000 + i
  end do
  at = int(rank, MPI_OFFSET_KIND) * 4000
  call MPI_File_write_at(file, at, numbers, 1000, MPI_INTEGER, status, error)
  call MPI_Get_count(status, MPI_INTEGER, got, error)
  if (got /= 1000) wrong = wrong + 1
  call MPI_File_sync(file, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_File_sync(file, error)
  at = int(mod(rank + 1, ranks), MPI_OFFSET_KIND) * 4000
  call MPI_File_read_at_all(file, at, numbers, 1000, MPI_INTEGER, status, error)
  do i = 1, 1000
    if (numbers(i) /= mod(rank + 1, ranks) * 1000 + i) wrong = wrong + 1
  end do
  call MPI_File_close(file, error)
end subroutine

subroutine module_of_mpi_2(path, wrong)
  use mpi
  implicit none
  character(len=*), intent(in) :: path
  integer, intent(inout) :: wrong
  integer :: file, rank, ranks, error, i, vector, status(MPI_STATUS_SIZE)
  integer(kind=MPI_OFFSET_KIND) :: at
  double precision :: numbers(300)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, file, error)
  ! Each process has every so manyth number behind what is there.
  call MPI_Type_vector(300, 1, ranks, MPI_DOUBLE_PRECISION, vector, error)
  call MPI_Type_commit(vector, error)
  at = 4000 * int(ranks, MPI_OFFSET_KIND) + 8 * int(rank, MPI_OFFSET_KIND)
  call MPI_File_set_view(file, at, MPI_DOUBLE_PRECISION, vector, 'native', MPI_INFO_NULL, error)
  if (error /= MPI_SUCCESS) wrong = wrong + 1
  do i = 1, 300
    numbers(i) = dble(rank) + dble(i) / 1024d0
  end do
  call MPI_File_write_all(file, numbers, 300, MPI_DOUBLE_PRECISION, status, error)
  if (error /= MPI_SUCCESS) wrong = wrong + 1
  ! Another process may be the one that writes it, and Open MPI does not wait for that.
  call MPI_File_sync(file, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_File_sync(file, error)
  at = 0
  call MPI_File_seek(file, at, MPI_SEEK_SET, error)
  numbers = 0
  call MPI_File_read(file, numbers, 300, MPI_DOUBLE_PRECISION, status, error)
  do i = 1, 300
    if (numbers(i) /= dble(rank) + dble(i) / 1024d0) wrong = wrong + 1
  end do
  call MPI_Type_free(vector, error)
  call MPI_File_close(file, error)
end subroutine

subroutine module_of_mpi_3(path, wrong)
  use mpi_f08
  implicit none
  character(len=*), intent(in) :: path
  integer, intent(inout) :: wrong
  type(MPI_File) :: file
  type(MPI_Status) :: status
  integer(kind=MPI_OFFSET_KIND) :: size, at
  integer :: rank, ranks, i
  character :: bytes(777)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, file)
  call MPI_File_get_size(file, size)
  if (size /= 4000_MPI_OFFSET_KIND * ranks + 2400_MPI_OFFSET_KIND * ranks) wrong = wrong + 1
  bytes = achar(65 + rank)
  call MPI_Barrier(MPI_COMM_WORLD)
  at = size + 777_MPI_OFFSET_KIND * rank
  call MPI_File_write_at_all(file, at, bytes, 777, MPI_CHARACTER, status)
  call MPI_File_sync(file)
  call MPI_Barrier(MPI_COMM_WORLD)
  call MPI_File_sync(file)
  at = size + 777_MPI_OFFSET_KIND * mod(rank + 1, ranks)
  call MPI_File_read_at(file, at, bytes, 777, MPI_CHARACTER, status)
  do i = 1, 777
    if (bytes(i) /= achar(65 + mod(rank + 1, ranks))) wrong = wrong + 1
  end do
  call MPI_File_close(file)
end subroutine

program bindings
  use mpi
  implicit none
  character(len=4096) :: path
  integer :: error, wrong, all, rank
  call MPI_Init(error)
  call get_command_argument(1, path)
  wrong = 0
  call old(trim(path), wrong)
  call module_of_mpi_2(trim(path), wrong)
  call module_of_mpi_3(trim(path), wrong)
  call MPI_Reduce(wrong, all, 1, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  if (rank == 0) print '(a,i0)', 'wrong: ', all
  call MPI_Finalize(error)
  if (wrong /= 0) stop 1
end program
