// Four threads of each rank send and receive at once, each with its own tag.
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 2000 };

static void *exchange(void *number)
{
	int tag = (int)(long)number, rank = world_rank(), size = world_size();
	int next = (rank + 1) % size, last = (rank + size - 1) % size;
	for (int round = 0; round < ROUNDS; round++) {
		int length = round % 50 ? round % 300 : 20000;
		unsigned char *out = pattern(length, rank + tag + round), *in = pattern(length, -1);
		unsigned char *right = pattern(length, last + tag + round);
		MPI_Request requests[2];
		MPI_Irecv(in, length, MPI_BYTE, last, tag, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(out, length, MPI_BYTE, next, tag, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(!memcmp(in, right, length));
		free(out), free(in), free(right);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int provided;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	CHECK(provided == MPI_THREAD_MULTIPLE);
	pthread_t threads[THREADS];
	for (long at = 0; at < THREADS; at++)
		pthread_create(&threads[at], NULL, exchange, (void *)at);
	for (int at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	return finish("threads");
}
