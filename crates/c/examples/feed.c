/* An MPI job that feeds a Rust service: each rank opens a stream of its own, and sends its samples.
 *
 *   mpicc -O2 -Icrates/c/include -o feed crates/c/examples/feed.c -Ltarget/release -lmidplane_c -Wl,-rpath,$PWD/target/release
 *   cargo run --release -p midplane-c --example collect -- 4 &
 *   mpirun -n 4 ./feed
 */
#include <mpi.h>
#include <stdio.h>

#include <midplane.h>

#define SAMPLES 100000

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, midplane_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

int main(int argc, char **argv) {
    static double samples[SAMPLES];
    int rank, stream;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int at = 0; at < SAMPLES; at++)
        samples[at] = rank + 1;

    stream = midplane_connect("samples");
    if (stream < 0)
        return failed("connect");
    if (midplane_send(stream, samples, sizeof samples) < 0)
        return failed("send");
    if (midplane_close(stream) < 0)
        return failed("close");
    MPI_Finalize();
    return 0;
}
