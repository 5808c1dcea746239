// Half round trips between two ranks: for each size, the median and the range of eleven runs, in microseconds. The argument
// is the number of round trips in a run; without one, 20,000 of 64 bytes, 2,000 of up to 64 KiB and 100 of 1 MiB.
#include "check.h"

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;
	return difference < 0 ? -1 : difference > 0;
}

int main(int argc, char **argv)
{
	enum { RUNS = 11 };
	static const int sizes[] = {64, 8192, 65536, 1 << 20};
	MPI_Init(&argc, &argv);
	int rank = world_rank();
	for (unsigned at = 0; at < sizeof sizes / sizeof *sizes; at++) {
		int size = sizes[at], rounds = argc > 1 ? atoi(argv[1]) : size > 65536 ? 100 : size > 1024 ? 2000 : 20000;
		unsigned char *out = pattern(size, rank), *in = pattern(size, -1);
		double times[RUNS];
		for (int run = 0; run < RUNS; run++) {
			MPI_Barrier(MPI_COMM_WORLD);
			double begin = MPI_Wtime();
			for (int round = 0; round < rounds; round++) {
				if (rank == 0)
					MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
				MPI_Recv(in, size, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				if (rank == 1)
					MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
			}
			times[run] = (MPI_Wtime() - begin) / rounds / 2 * 1e6;
		}
		qsort(times, RUNS, sizeof *times, compare);
		if (!rank)
			printf("%d B: %.2f us (%.2f to %.2f)\n", size, times[RUNS / 2], times[0], times[RUNS - 1]);
		free(out), free(in);
	}
	MPI_Finalize();
	return 0;
}
