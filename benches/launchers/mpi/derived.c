// Types that are not contiguous, short and long.
#include "check.h"

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size(), next = (rank + 1) % size, last = (rank + size - 1) % size;
	for (int n = 2; n <= 1024; n *= 8) {
		double *matrix = malloc(n * n * sizeof *matrix), *columns = malloc(n * n * sizeof *columns);
		for (int at = 0; at < n * n; at++)
			matrix[at] = rank * 1e6 + at, columns[at] = -1;
		MPI_Datatype vector, column;
		MPI_Type_vector(n, 1, n, MPI_DOUBLE, &vector);
		MPI_Type_create_resized(vector, 0, sizeof(double), &column);
		MPI_Type_commit(&column);
		MPI_Sendrecv(matrix, n, column, next, 1, columns, n * n, MPI_DOUBLE, last, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		for (int at = 0; at < n * n; at++)
			CHECK(columns[at] == last * 1e6 + (at % n) * n + at / n);
		MPI_Sendrecv(matrix, n * n, MPI_DOUBLE, next, 2, columns, n, column, last, 2, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		CHECK(columns[1] == last * 1e6 + n);
		MPI_Type_free(&vector), MPI_Type_free(&column);
		free(matrix), free(columns);
	}
	return finish("derived");
}
