/* post: a small blocking library for messages between the processes and threads of one host. It is a placeholder for
 * the library that you wrap; delete it when yours is in place.
 *
 * Functions return 0 or an errno. Sends to different peers, one receive, and post_interrupt may run at the same time.
 */
#ifndef POST_H
#define POST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct post post;

#define POST_ADDRESS_SIZE 64

/* Opens an office and writes its address as text. `me` is the number that peers will see, `peers` their count. NULL on
 * failure, with errno set. */
post* post_open(int me, int peers, char address[POST_ADDRESS_SIZE]);

/* Connects to a peer. ETIMEDOUT after timeout_ms. Not concurrently with post_send to the same peer. */
int post_connect(post* self, int peer, const char* address, int timeout_ms);

/* Sends a message. Blocks until the kernel has all of it: the message then arrives even if this office closes. EPIPE:
 * the peer has closed. */
int post_send(post* self, int peer, const void* data, size_t size);

/* Blocks until a message has arrived from any peer. The caller frees *data with free(). EPIPE: *peer has closed
 * (reported once for each peer). */
int post_recv(post* self, int* peer, void** data, size_t* size);

/* Makes all blocking calls, present and future, return ECANCELED. Any thread. */
void post_interrupt(post* self);

/* No other call on the office may be running. Messages that were not received are lost. */
void post_close(post* self);

#ifdef __cplusplus
}
#endif

#endif
