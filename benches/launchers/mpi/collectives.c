// Collective operations of short and long vectors, and on parts of the ranks.
#include "check.h"

static void all_of(MPI_Comm comm, int n)
{
	int rank, size;
	MPI_Comm_rank(comm, &rank), MPI_Comm_size(comm, &size);
	int *in = malloc(n * size * sizeof *in), *out = malloc(n * size * sizeof *out);
	for (int at = 0; at < n * size; at++)
		in[at] = rank * 1000 + at;
	MPI_Allreduce(in, out, n, MPI_INT, MPI_SUM, comm);
	for (int at = 0; at < n; at++)
		CHECK(out[at] == size * at + 1000 * (size * (size - 1) / 2));
	MPI_Alltoall(in, n, MPI_INT, out, n, MPI_INT, comm);
	for (int from = 0; from < size; from++)
		CHECK(out[from * n] == from * 1000 + rank * n);
	MPI_Allgather(in, n, MPI_INT, out, n, MPI_INT, comm);
	for (int from = 0; from < size; from++)
		CHECK(out[from * n + n - 1] == from * 1000 + n - 1);
	for (int root = 0; root < size; root++) {
		if (rank == root)
			memcpy(out, in, n * sizeof *out);
		MPI_Bcast(out, n, MPI_INT, root, comm);
		CHECK(out[n - 1] == root * 1000 + n - 1);
		MPI_Gather(in, n, MPI_INT, out, n, MPI_INT, root, comm);
		CHECK(rank != root || out[(size - 1) * n] == (size - 1) * 1000);
		MPI_Scatter(in, n, MPI_INT, out, n, MPI_INT, root, comm);
		CHECK(out[0] == root * 1000 + rank * n);
		MPI_Reduce(in, out, n, MPI_INT, MPI_MAX, root, comm);
		CHECK(rank != root || out[0] == (size - 1) * 1000);
	}
	MPI_Scan(in, out, n, MPI_INT, MPI_SUM, comm);
	CHECK(out[0] == 1000 * (rank * (rank + 1) / 2));
	MPI_Request requests[2];
	MPI_Ibcast(in, n, MPI_INT, 0, comm, &requests[0]);
	MPI_Ibarrier(comm, &requests[1]);
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	CHECK(in[0] == 0);
	free(in), free(out);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	for (int n = 1; n <= 1 << 16; n *= 16)
		all_of(MPI_COMM_WORLD, n);
	MPI_Comm half;
	MPI_Comm_split(MPI_COMM_WORLD, world_rank() % 2, 0, &half);
	all_of(half, 100);
	MPI_Comm_free(&half);
	return finish("collectives");
}
