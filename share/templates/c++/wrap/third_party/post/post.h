/* post: a small library that carries messages between the processes and threads of one host, and blocks. It stands in
 * for the library that you wrap; throw it away when yours is in place.
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

/* Opens an office and writes its address, a text. `me` is the number that peers will see. `peers`: how many there are.
 * NULL: see errno. */
post* post_open(int me, int peers, char address[POST_ADDRESS_SIZE]);

/* Opens the way to a peer. ETIMEDOUT after timeout_ms. Not beside post_send to the same peer. */
int post_connect(post* self, int peer, const char* address, int timeout_ms);

/* Sends a message. Blocks until the system has it: then it arrives, even if this office closes. EPIPE: the peer is
 * gone.
 */
int post_send(post* self, int peer, const void* data, size_t size);

/* Blocks until a message has come from anyone. *data is to be given to free(). EPIPE: nothing comes from *peer any more
 * (told once for each). */
int post_recv(post* self, int* peer, void** data, size_t* size);

/* Everything that blocks returns ECANCELED, now and for ever. From any thread. */
void post_interrupt(post* self);

/* Nothing may run in it. What has arrived and was not received is lost. */
void post_close(post* self);

#ifdef __cplusplus
}
#endif

#endif
