/* A heat equation by Jacobi's iteration, in rows: each step exchanges borders with both neighbours and sums the change.
 *
 *   solve [STEPS]
 *
 * Prints a checksum of all bits of the result and of every sum, and the most processor time that a rank has computed for, in
 * seconds, without its calls of MPI. */
#include "check.h"

enum { COLUMNS = 512, ROWS = 256 };

static double grid[2][ROWS + 2][COLUMNS];

/* Returns the square of the change. */
static double step(double (*from)[COLUMNS], double (*to)[COLUMNS])
{
	double change = 0;
	for (int row = 1; row <= ROWS; row++)
		for (int at = 1; at < COLUMNS - 1; at++) {
			double mean = (from[row - 1][at] + from[row + 1][at] + from[row][at - 1] + from[row][at + 1]) / 4;
			to[row][at] = mean;
			change += (mean - from[row][at]) * (mean - from[row][at]);
		}
	return change;
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 1000;
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size();
	int up = rank ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
	for (int row = 0; row < ROWS + 2; row++)
		grid[0][row][0] = grid[1][row][0] = rank * ROWS + row;
	double computed = 0, most;
	uint64_t sum = 0xcbf29ce484222325u, all;
	for (int at = 0; at < steps; at++) {
		double (*from)[COLUMNS] = grid[at % 2], (*to)[COLUMNS] = grid[1 - at % 2];
		MPI_Sendrecv(from[1], COLUMNS, MPI_DOUBLE, up, 0, from[ROWS + 1], COLUMNS, MPI_DOUBLE, down, 0, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		MPI_Sendrecv(from[ROWS], COLUMNS, MPI_DOUBLE, down, 1, from[0], COLUMNS, MPI_DOUBLE, up, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		double began = processor_time();
		double own = step(from, to), change;
		computed += processor_time() - began;
		MPI_Allreduce(&own, &change, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		sum = mix(sum, change);
	}
	for (int row = 1; row <= ROWS; row++)
		for (int at = 0; at < COLUMNS; at++)
			sum = mix(sum, grid[steps % 2][row][at]);
	MPI_Reduce(&sum, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
	MPI_Reduce(&computed, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (!rank)
		printf("solve: %016llx after %d steps on %d ranks, computed for %.4f s\n", (unsigned long long)all, steps, size, most);
	MPI_Finalize();
	return 0;
}
