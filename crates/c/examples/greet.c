/* A client of the service of `cargo run --example hello -- --serve`: sends a name, prints the greeting.
 *
 *   cc -O2 -Icrates/c/include -o greet crates/c/examples/greet.c -Ltarget/release -lmidplane_c -Wl,-rpath,$PWD/target/release
 *   ./greet Ada
 */
#include <stdio.h>
#include <string.h>

#include <midplane.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, midplane_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "C";
    char bytes[256];
    ptrdiff_t received;
    int stream = midplane_connect("greeter");

    if (stream < 0)
        return failed("connect");
    /* The service reads to the end of the name, then answers. */
    if (midplane_send(stream, name, strlen(name)) < 0 || midplane_finish(stream) < 0)
        return failed("send");
    while ((received = midplane_receive(stream, bytes, sizeof bytes)) > 0)
        fwrite(bytes, 1, (size_t)received, stdout);
    if (received < 0)
        return failed("receive");
    putchar('\n');
    return midplane_close(stream) < 0 ? failed("close") : 0;
}
