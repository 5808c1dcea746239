/* Functions of ep, cg and ft, ports of crates/nas to C: kernels of the NAS Parallel Benchmarks (NAS-95-020, reference 3.4).
 *
 *   ep|cg|ft [CLASS [TIMES]]
 *
 * CLASS is S (the default), W or A; the kernel is solved TIMES times, once by default. Each compares its values with the official
 * ones, and prints a checksum of their bits, and the most processor time that a rank has used outside of MPI's calls, in seconds. */
#include "check.h"

#include <math.h>

#define SEED_EP 271828183u
#define SEED 314159265u

/* 5^13: the generator is x' = 5^13 x mod 2^46. */
static const uint64_t factor = 1220703125, mask = ((uint64_t)1 << 46) - 1;

static inline double draw(uint64_t *stream)
{
	*stream = *stream * factor & mask;
	return *stream / 70368744177664.0;
}

/* Returns the stream after `count` more numbers. */
static inline uint64_t skipped(uint64_t stream, uint64_t count)
{
	for (uint64_t power = factor; count; count >>= 1, power = power * power & mask)
		if (count & 1)
			stream = stream * power & mask;
	return stream;
}

/* Returns the place of the class in tables: 0 for S, 1 for W, 2 for A. */
static inline int class_of(int argc, char **argv)
{
	const char *found = strchr("SWA", argc > 1 ? *argv[1] : 'S');
	CHECK(found && *found && (argc < 2 || !argv[1][1]));
	return (int)(found - "SWA");
}

static inline int times_of(int argc, char **argv)
{
	int times = argc > 2 ? atoi(argv[2]) : 1;
	CHECK(times > 0);
	return times;
}

static inline void *room(size_t count, size_t bytes)
{
	void *memory = calloc(count ? count : 1, bytes);
	CHECK(memory);
	return memory;
}

/* The processor time of a rank's computation: between `begin` and `end`. */
static double computed, began;

static inline void begin(void) { began = processor_time(); }
static inline void end(void) { computed += processor_time() - began; }

/* Compares values with the official ones, within a relative error, and reports on rank 0. */
static inline void verify(const char *name, int class, const double *values, const double *official, int count, double tolerance)
{
	uint64_t sum = 0xcbf29ce484222325u;
	double most;
	for (int at = 0; at < count; at++) {
		CHECK(fabs((values[at] - official[at]) / official[at]) <= tolerance);
		sum = mix(sum, values[at]);
	}
	MPI_Reduce(&computed, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (!world_rank())
		printf("%s: %016llx of class %c on %d ranks, verified, computed for %.4f s\n", name, (unsigned long long)sum,
		       "SWA"[class], world_size(), most);
	MPI_Finalize();
}
