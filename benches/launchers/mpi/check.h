// Functions of all programs: checks that name their line, buffers with a pattern, checksums, and processor time.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			MPI_Abort(MPI_COMM_WORLD, 1);                                 \
		}                                                                     \
	} while (0)

static inline int world_rank(void)
{
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	return rank;
}

static inline int world_size(void)
{
	int size;
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	return size;
}

static inline unsigned char *pattern(int length, int seed)
{
	unsigned char *bytes = malloc(length + 1);
	for (int at = 0; at < length; at++)
		bytes[at] = (unsigned char)(at * 31 + (at >> 8) + seed * 7);
	return bytes;
}

/* Returns a checksum with the bits of one more value. */
static inline uint64_t mix(uint64_t sum, double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	return (sum ^ bits) * 0x100000001b3u;
}

/* Returns the processor time of this process, in seconds. */
static inline double processor_time(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static inline int finish(const char *name)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (!world_rank())
		printf("%s: passed on %d ranks\n", name, world_size());
	MPI_Finalize();
	return 0;
}
