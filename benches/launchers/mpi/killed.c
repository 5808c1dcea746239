// The last rank is killed in the middle of messages: the others must end with an error, not wait for ever.
#include "check.h"
#include <signal.h>

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank = world_rank(), size = world_size();
	static char bytes[200000];
	for (int round = 0;; round++) {
		if (round == 100 && rank == size - 1)
			raise(SIGKILL);
		MPI_Sendrecv_replace(bytes, sizeof bytes, MPI_BYTE, (rank + 1) % size, 0, (rank + size - 1) % size, 0,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}
