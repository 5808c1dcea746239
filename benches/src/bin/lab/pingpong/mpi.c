/* The same measurement over MPI: round trips, then one way; prints median and p99 in us, and GB/s. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    int rank, bytes = atoi(argv[1]), batches = atoi(argv[2]), batch = atoi(argv[3]);
    char *buffer = malloc(bytes + 1);
    double *times = malloc(batches * sizeof *times);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(buffer, 7, bytes + 1);
    for (int at = -batches; at < batches; at++) {
        double begin = MPI_Wtime();
        for (int turn = 0; turn < batch; turn++) {
            if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        if (at >= 0) times[at] = (MPI_Wtime() - begin) / (2 * batch) * 1e6;
    }
    double begin = MPI_Wtime();
    for (int at = 0; at < batches * batch; at++) {
        if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        else MPI_Recv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - begin;
    qsort(times, batches, sizeof *times, by_value);
    if (rank == 0)
        printf("%.6f %.6f %.6f\n", times[batches / 2], times[batches * 99 / 100],
               (double)batches * batch * bytes / seconds / 1e9);
    MPI_Finalize();
    return 0;
}
