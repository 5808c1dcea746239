// Passes messages of 0 B to 2 MiB around a ring, with probes, several requests at once, and unexpected ones.
#include "check.h"

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size();
	int next = (rank + 1) % size, last = (rank + size - 1) % size;
	for (int length = 0; length <= 2 << 20; length = length ? length * 4 : 1) {
		unsigned char *out = pattern(length, rank), *in = pattern(length, -1), *right = pattern(length, last);
		MPI_Request request;
		MPI_Isend(out, length, MPI_BYTE, next, length % 100, MPI_COMM_WORLD, &request);
		MPI_Status status;
		MPI_Probe(last, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
		int count;
		MPI_Get_count(&status, MPI_BYTE, &count);
		CHECK(count == length && status.MPI_TAG == length % 100);
		MPI_Recv(in, length, MPI_BYTE, MPI_ANY_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
		CHECK(status.MPI_SOURCE == last && !memcmp(in, right, length));
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		free(out), free(in), free(right);
	}
	// A thousand messages that are received in the opposite order of their tags.
	enum { N = 1000 };
	static int sent[N], got[N];
	MPI_Request requests[2 * N];
	for (int at = 0; at < N; at++) {
		sent[at] = rank * N + at;
		MPI_Isend(&sent[at], 1, MPI_INT, next, at, MPI_COMM_WORLD, &requests[at]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (int at = 0; at < N; at++)
		MPI_Irecv(&got[N - 1 - at], 1, MPI_INT, last, N - 1 - at, MPI_COMM_WORLD, &requests[N + at]);
	MPI_Waitall(2 * N, requests, MPI_STATUSES_IGNORE);
	for (int at = 0; at < N; at++)
		CHECK(got[at] == last * N + at);
	// A synchronous send completes only with its receive; a matched probe reserves its message. Not both at once: Open MPI
	// 4.1 then waits for ever, over each provider.
	MPI_Request request;
	int value = rank, got_value = -1;
	MPI_Issend(&value, 1, MPI_INT, next, 7, MPI_COMM_WORLD, &request);
	MPI_Recv(&got_value, 1, MPI_INT, last, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	CHECK(got_value == last);
	MPI_Isend(&value, 1, MPI_INT, next, 8, MPI_COMM_WORLD, &request);
	MPI_Message message;
	got_value = -1;
	MPI_Mprobe(last, 8, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
	MPI_Mrecv(&got_value, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	CHECK(got_value == last);
	return finish("ring");
}
