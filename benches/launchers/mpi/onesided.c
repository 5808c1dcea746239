// Puts, gets and accumulates, with fences, locks and flushes.
#include "check.h"

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size(), next = (rank + 1) % size, last = (rank + size - 1) % size;
	enum { N = 1 << 18 };
	int *memory, *local = malloc(N * sizeof *local);
	MPI_Win window;
	MPI_Win_allocate(N * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	memset(memory, 0, N * sizeof *memory);
	for (int at = 0; at < N; at++)
		local[at] = rank * N + at;
	for (int n = 1; n <= N; n *= 8) {
		MPI_Win_fence(0, window);
		MPI_Put(local, n, MPI_INT, next, 0, n, MPI_INT, window);
		MPI_Win_fence(0, window);
		for (int at = 0; at < n; at++)
			CHECK(memory[at] == last * N + at);
		int *got = malloc(n * sizeof *got);
		MPI_Get(got, n, MPI_INT, next, 0, n, MPI_INT, window);
		MPI_Win_fence(0, window);
		for (int at = 0; at < n; at++)
			CHECK(got[at] == rank * N + at);
		free(got);
	}
	memory[0] = 0;
	MPI_Win_fence(0, window);
	for (int at = 0; at < 100; at++)
		MPI_Accumulate(&rank, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_SUM, window);
	MPI_Win_fence(0, window);
	CHECK(rank || memory[0] == 100 * (size * (size - 1) / 2));
	memory[1] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (int at = 0; at < 100; at++) {
		int one = 1, old;
		MPI_Fetch_and_op(&one, &old, MPI_INT, 0, 1, MPI_SUM, window);
		MPI_Win_flush(0, window);
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
	int sum;
	MPI_Get(&sum, 1, MPI_INT, 0, 1, 1, MPI_INT, window);
	MPI_Win_unlock(0, window);
	CHECK(sum == 100 * size);
	MPI_Win_free(&window);
	// Memory of the program's own, and columns of a matrix.
	double own[64] = {0};
	MPI_Win_create(own, sizeof own, sizeof *own, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Datatype column;
	MPI_Type_vector(8, 1, 8, MPI_DOUBLE, &column);
	MPI_Type_commit(&column);
	double column_values[8];
	for (int at = 0; at < 8; at++)
		column_values[at] = rank + at;
	MPI_Win_fence(0, window);
	MPI_Put(column_values, 8, MPI_DOUBLE, next, 3, 1, column, window);
	MPI_Win_fence(0, window);
	for (int at = 0; at < 8; at++)
		CHECK(own[8 * at + 3] == last + at);
	MPI_Type_free(&column);
	MPI_Win_free(&window);
	free(local);
	return finish("onesided");
}
