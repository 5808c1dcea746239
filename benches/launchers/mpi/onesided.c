// Puts, gets and accumulates, with fences, locks and flushes.
#include "check.h"
#include <stdint.h>

/* Accumulates of TYPE by all ranks at once, in memory of rank 0. With the hints, MPICH leaves them to the network's atomic operations. */
#define ACCUMULATES(TYPE, MPI_TYPE, OPERATION, NAME, FIRST, ALL) do { \
	enum { N = 300 }; \
	TYPE *values, mine[N], old[N]; \
	MPI_Win w; \
	MPI_Info_set(hint, "which_accumulate_ops", NAME); \
	MPI_Win_allocate(N * sizeof(TYPE), sizeof(TYPE), hint, MPI_COMM_WORLD, &values, &w); \
	for (int at = 0; at < N; at++) { \
		values[at] = FIRST; \
		mine[at] = rank + 1; \
	} \
	MPI_Barrier(MPI_COMM_WORLD); \
	MPI_Win_lock_all(0, w); \
	MPI_Accumulate(mine, N, MPI_TYPE, 0, 0, N, MPI_TYPE, OPERATION, w); \
	MPI_Win_flush_all(w); \
	MPI_Barrier(MPI_COMM_WORLD); \
	MPI_Get(old, N, MPI_TYPE, 0, 0, N, MPI_TYPE, w); \
	MPI_Win_unlock_all(w); \
	for (int at = 0; at < N; at++) \
		CHECK(old[at] == (TYPE)(ALL)); \
	MPI_Win_free(&w); \
} while (0)

/* Integers have the operations on bits in addition. */
#define INTEGERS(TYPE, MPI_TYPE) do { \
	NUMBERS(TYPE, MPI_TYPE); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_BOR, "bor", 64, 64 | any); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_BAND, "band", 7, 7 & all); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_BXOR, "bxor", 64, 64 ^ odd); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_LAND, "land", 9, 1); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_LOR, "lor", 0, 1); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_LXOR, "lxor", 0, size % 2); \
} while (0)
#define NUMBERS(TYPE, MPI_TYPE) do { \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_SUM, "sum", 1, 1 + size * (size + 1) / 2); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_PROD, "prod", 1, product); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_MIN, "min", 100, 1); \
	ACCUMULATES(TYPE, MPI_TYPE, MPI_MAX, "max", 0, size); \
} while (0)

static void accumulates(const char *answer)
{
	int rank = world_rank(), size = world_size(), any = 0, all = 7, odd = 0;
	long product = 1;
	for (int of = 1; of <= size; of++) {
		any |= of;
		all &= of;
		odd ^= of;
		product *= of;
	}
	MPI_Info hint;
	MPI_Info_create(&hint);
	MPI_Info_set(hint, "disable_shm_accumulate", answer);
	INTEGERS(int8_t, MPI_INT8_T);
	INTEGERS(uint8_t, MPI_UINT8_T);
	INTEGERS(int16_t, MPI_INT16_T);
	INTEGERS(uint16_t, MPI_UINT16_T);
	INTEGERS(int32_t, MPI_INT32_T);
	INTEGERS(uint32_t, MPI_UINT32_T);
	INTEGERS(int64_t, MPI_INT64_T);
	INTEGERS(uint64_t, MPI_UINT64_T);
	NUMBERS(float, MPI_FLOAT);
	NUMBERS(double, MPI_DOUBLE);
	MPI_Info_delete(hint, "which_accumulate_ops");
	// A counter by compare and swap, and a token that ranks replace.
	int64_t *counter, one, seen, wanted, was;
	MPI_Win w;
	MPI_Win_allocate(2 * sizeof *counter, sizeof *counter, hint, MPI_COMM_WORLD, &counter, &w);
	counter[0] = 0;
	counter[1] = -1;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, w);
	for (int round = 0; round < 50; round++) {
		MPI_Fetch_and_op(NULL, &seen, MPI_INT64_T, 0, 0, MPI_NO_OP, w);
		MPI_Win_flush(0, w);
		for (;;) {
			wanted = seen + 1;
			MPI_Compare_and_swap(&wanted, &seen, &was, MPI_INT64_T, 0, 0, w);
			MPI_Win_flush(0, w);
			if (was == seen)
				break;
			seen = was;
		}
	}
	one = rank;
	MPI_Fetch_and_op(&one, &was, MPI_INT64_T, 0, 1, MPI_REPLACE, w);
	MPI_Win_flush_all(w);
	CHECK(was >= -1 && was < size && was != rank);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Fetch_and_op(NULL, &seen, MPI_INT64_T, 0, 0, MPI_NO_OP, w);
	MPI_Win_unlock_all(w);
	CHECK(seen == 50 * size);
	MPI_Win_free(&w);
	MPI_Info_free(&hint);
}

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
	accumulates("false");
	accumulates("true");
	MPI_Type_free(&column);
	MPI_Win_free(&window);
	free(local);
	return finish("onesided");
}
