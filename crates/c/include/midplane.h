/* Streams to Midplane's services, for C programs: link with -lmidplane_c.
 *
 *   int stream = midplane_connect("samples");
 *   if (stream < 0 || midplane_send(stream, data, sizeof data) < 0 || midplane_close(stream) < 0)
 *       fprintf(stderr, "%s\n", midplane_error());
 *
 * The first call starts a node of this process, with a thread of its own. The environment configures it:
 *
 *   MIDPLANE_CLUSTER     the cluster's name; default: "default"
 *   MIDPLANE_DISCOVER    places of nodes on other hosts: HOST:PORT, several separated by commas
 *   MIDPLANE_KEY_FILE    the cluster's key; needed for other hosts
 *   MIDPLANE_TRANSPORTS  some of shm, udp, tcp, separated by commas
 *
 * Any thread may call any function; two threads may use one stream, one to send and one to receive. A process that was forked
 * after its first call can't use the node of its parent. Functions return a negative number on failure, and midplane_error
 * then returns the reason.
 */
#ifndef MIDPLANE_H
#define MIDPLANE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a stream to a service, and returns its number. Waits up to 5 s for a node that offers it. */
int midplane_connect(const char *service);

/* Sends all of the bytes; waits while the service does not read. Returns 0. */
int midplane_send(int stream, const void *bytes, size_t length);

/* Receives from 1 to `length` bytes, and returns how many; 0 once the service has ended its side. */
ptrdiff_t midplane_receive(int stream, void *bytes, size_t length);

/* Ends the caller's side: the service reads to the end. Bytes from the service are still received. Returns 0. */
int midplane_finish(int stream);

/* Closes a stream: ends the caller's side, then waits up to 10 s until the service has ended its side as well, discarding
 * the bytes that it still sends. Returns 0 if the service has ended its side: a service that does so only after it has read
 * everything thereby confirms that. The number is free in any case. A receive of another thread then fails; a send of
 * another thread is waited for. */
int midplane_close(int stream);

/* Returns the reason of this thread's last failure, in English: text that stays until the thread's next call. */
const char *midplane_error(void);

#ifdef __cplusplus
}
#endif

#endif
