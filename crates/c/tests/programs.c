/* Test programs of tests/main.rs: programs NAME. Prints the check that failed, and returns 1. */
#include <midplane.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is_true)                                                                             \
    do {                                                                                           \
        if (!(is_true)) {                                                                          \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #is_true, midplane_error());            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void receive_all(int stream, char *bytes, size_t length) {
    size_t done = 0;
    while (done < length) {
        ptrdiff_t got = midplane_receive(stream, bytes + done, length - done);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

/* Sends more bytes than any flow-control window has, and receives them back at the same time. */
struct echo {
    int stream;
    char *bytes;
    size_t length;
};

static void *sends(void *argument) {
    struct echo *echo = argument;
    CHECK(midplane_send(echo->stream, echo->bytes, echo->length) == 0);
    CHECK(midplane_finish(echo->stream) == 0);
    return NULL;
}

static void echo(void) {
    size_t length = 8 << 20;
    char *sent = malloc(length), *received = malloc(length), more;
    pthread_t thread;
    struct echo echo = {midplane_connect("echo"), sent, length};
    CHECK(echo.stream >= 0);
    for (size_t at = 0; at < length; at++)
        sent[at] = (char)(at * 7);
    CHECK(pthread_create(&thread, NULL, sends, &echo) == 0);
    receive_all(echo.stream, received, length);
    CHECK(midplane_receive(echo.stream, &more, 1) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memcmp(sent, received, length) == 0);
    CHECK(midplane_close(echo.stream) == 0);
}

static void wrong(void) {
    char byte = 0;
    CHECK(midplane_connect(NULL) < 0 && strstr(midplane_error(), "NULL"));
    CHECK(midplane_connect("\xff") < 0 && strstr(midplane_error(), "UTF-8"));
    CHECK(midplane_connect("") < 0);
    CHECK(midplane_connect("nothing offers this") < 0);
    CHECK(midplane_send(0, &byte, 1) < 0 && strstr(midplane_error(), "no stream 0"));
    CHECK(midplane_receive(-1, &byte, 1) < 0 && midplane_finish(7) < 0 && midplane_close(7) < 0);
    int stream = midplane_connect("echo");
    CHECK(stream >= 0);
    CHECK(midplane_send(stream, NULL, 0) == 0);
    CHECK(midplane_send(stream, NULL, 1) < 0 && midplane_send(stream, &byte, (size_t)-1) < 0);
    CHECK(midplane_receive(stream, &byte, 0) < 0 && midplane_receive(stream, NULL, 1) < 0);
    CHECK(midplane_close(stream) == 0);
    CHECK(midplane_close(stream) < 0 && strstr(midplane_error(), "was closed"));
    CHECK(midplane_send(stream, &byte, 1) < 0);
}

/* The service resets this stream. */
static void reset(void) {
    char byte;
    int stream = midplane_connect("reset");
    CHECK(stream >= 0);
    CHECK(midplane_receive(stream, &byte, 1) < 0);
    CHECK(strlen(midplane_error()) > 0);
    CHECK(midplane_close(stream) < 0);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "echo"))
        echo();
    else if (!strcmp(name, "wrong"))
        wrong();
    else if (!strcmp(name, "reset"))
        reset();
    else
        return 2;
    return 0;
}
