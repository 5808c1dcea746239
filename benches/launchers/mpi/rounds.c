/* Times rounds of a barrier and of a sum: a round lasts from its first rank's begin to its last one's end. The arguments are
 * the number of rounds, 1,000 if none is given, and the bytes of each rank's numbers, 8 if none are given.
 * Prints "barrier MEDIAN" and "all-reduce MEDIAN", in us. All ranks run on one host, whose monotonic clock they share. */
#include "check.h"

#include <time.h>

static double now_us(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;
	return (left > right) - (left < right);
}

static long long *words, *sum;
static int count;

static void once(int sums)
{
	if (sums)
		MPI_Allreduce(words, sum, count, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	else
		MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1000;
	CHECK(rounds > 0);
	count = (argc > 2 ? atoi(argv[2]) : 8) / sizeof *words;
	CHECK(count > 0);
	words = calloc(count, sizeof *words), sum = calloc(count, sizeof *sum);
	CHECK(words && sum);
	double *begun = calloc(rounds, sizeof *begun), *ended = calloc(rounds, sizeof *ended);
	double *first = calloc(rounds, sizeof *first), *last = calloc(rounds, sizeof *last);
	CHECK(begun && ended && first && last);
	MPI_Init(&argc, &argv);
	for (int sums = 0; sums < 2; sums++) {
		for (int at = -rounds / 10; at < rounds; at++) {
			double begin = now_us();
			once(sums);
			if (at >= 0) {
				begun[at] = begin;
				ended[at] = now_us();
			}
		}
		MPI_Reduce(begun, first, rounds, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
		MPI_Reduce(ended, last, rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
		for (int at = 0; at < rounds; at++)
			last[at] -= first[at];
		qsort(last, rounds, sizeof *last, by_value);
		if (world_rank() == 0)
			printf("%s %.2f\n", sums ? "all-reduce" : "barrier", last[rounds / 2]);
	}
	MPI_Finalize();
	return 0;
}
