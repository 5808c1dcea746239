// Receives that are cancelled, messages that are too long, and operations of a rank with itself.
#include "check.h"

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size(), next = (rank + 1) % size, last = (rank + size - 1) % size;
	int value = 0, cancelled;
	MPI_Request request;
	MPI_Status status;
	for (int at = 0; at < 100; at++) {
		MPI_Irecv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &request);
		MPI_Cancel(&request);
		MPI_Wait(&request, &status);
		MPI_Test_cancelled(&status, &cancelled);
		CHECK(cancelled);
	}
	int five[5] = {1, 2, 3, 4, 5}, two[3] = {0};
	MPI_Isend(five, 5, MPI_INT, rank, 3, MPI_COMM_WORLD, &request);
	MPI_Recv(five, 5, MPI_INT, rank, 3, MPI_COMM_WORLD, &status);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Isend(five, 5, MPI_INT, next, 4, MPI_COMM_WORLD, &request);
	int error = MPI_Recv(two, 2, MPI_INT, last, 4, MPI_COMM_WORLD, &status), class = 0;
	MPI_Error_class(error, &class);
	CHECK(class == MPI_ERR_TRUNCATE && two[1] == 2 && two[2] == 0);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	return finish("cancel");
}
