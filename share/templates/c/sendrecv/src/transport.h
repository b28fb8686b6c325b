/* The thread of an agent: connections and the messages on them. It does not hold the lock during system calls. */
#ifndef ACME_TRANSPORT_H
#define ACME_TRANSPORT_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "matching.h"

#define ACME_RETRY_MS 10
#define ACME_TURNS 64 /* reads or writes on one connection before the next connection is served */

static void lose(acme_group* t, int32_t rank, int incoming, int32_t status, int64_t code, const char* what) {
  acme_peer* p = &t->peer[rank];
  bp_error* of = incoming ? &p->in : &p->out;
  char text[160];
  (void)snprintf(text, sizeof text, "acme-id: %s rank %d (errno %d)", what, (int)rank, (int)code);
  (void)pthread_mutex_lock(&t->lock);
  if (of->status == BP_OK) (void)bp_error_set(of, status, code, rank, text);
  if (incoming) {
    fail_recvs(t, rank, 0, of);
    if (all_lost(t) != NULL) fail_recvs(t, BP_ANY_SOURCE, 0, of);
  } else {
    fail_sends(t, p, of), free(p->writing), p->writing = NULL;
  }
  (void)pthread_mutex_unlock(&t->lock);
  if (incoming) return;
  if (p->fd >= 0) (void)close(p->fd);
  p->fd = -1;
  p->wanted = 0;
  p->opened = 1;
}

static int is_scarce(int code) { /* a resource shortage: retry later */
  return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
}

static void open_to(acme_group* t, int32_t rank) { /* leaves `opened` at 0 if it should be retried */
  acme_address to;
  acme_hello hello = {0, t->rank, 0};
  uint64_t size = 0;
  bp_error err;
  char key[32];
  bp_error_init(&err);
  (void)snprintf(key, sizeof key, "acme.%d", (int)rank);
  const int32_t status = t->host->store_get(t->host->ctx, key, &to, sizeof to, &size, 0, &err);
  if (status == BP_TIMEOUT || status == BP_CANCELLED) return; /* not listening yet, or the group is ending */
  if (status != BP_OK || size != sizeof to || to.size > sizeof to.name) {
    lose(t, rank, 0, status != BP_OK ? status : BP_INTERNAL, EADDRNOTAVAIL, "the store has no valid address of");
    return;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    if (!is_scarce(errno)) lose(t, rank, 0, BP_RESOURCE, errno, "cannot create a socket for");
    return;
  }
  if (t->sndbuf > 0) (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &t->sndbuf, sizeof t->sndbuf);
  hello.nonce = to.nonce;
  t->peer[rank].fd = fd;
  if (connect(fd, (const struct sockaddr*)&to.name, to.size) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      lose(t, rank, 0, BP_PEER_LOST, errno, "cannot connect on this host to");
      return;
    }
    (void)close(fd); /* its backlog is full */
    t->peer[rank].fd = -1;
  } else if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello) {
    lose(t, rank, 0, BP_PEER_LOST, errno, "no answer from");
  } else {
    t->peer[rank].opened = 1;
  }
}

static void write_to(acme_group* t, int32_t rank) {
  acme_peer* p = &t->peer[rank];
  for (int turn = 0; turn < ACME_TURNS; ++turn) {
    (void)pthread_mutex_lock(&t->lock);
    if (p->writing == NULL && !TAILQ_EMPTY(&p->queue)) {
      p->writing = TAILQ_FIRST(&p->queue);
      TAILQ_REMOVE(&p->queue, p->writing, link);
    }
    acme_message* m = p->writing;
    (void)pthread_mutex_unlock(&t->lock);
    if (m == NULL) return;
    const uint64_t total = sizeof m->frame + m->frame.bytes;
    const char* frame = (const char*)m + offsetof(acme_message, frame);
    const ssize_t sent = send(p->fd, frame + m->done, total - m->done, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) lose(t, rank, 0, BP_PEER_LOST, errno, "lost the connection to");
      return;
    }
    m->done += (uint64_t)sent;
    if (m->done < total) continue;
    (void)pthread_mutex_lock(&t->lock);
    if (m->work != NULL) finish(t, m->work, NULL);
    p->writing = NULL;
    (void)pthread_mutex_unlock(&t->lock);
    free(m);
  }
}

static int read_from(acme_group* t, acme_conn* c) { /* 0, or the errno that ends the connection */
  for (int turn = 0; turn < ACME_TURNS; ++turn) {
    const uint64_t end = c->message != NULL ? c->message->frame.bytes : sizeof c->head;
    char* to = c->message != NULL ? c->message->data : (char*)&c->head;
    const ssize_t got = recv(c->fd, to + c->have, end - c->have, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : errno;
    if (got == 0) return ECONNRESET;
    c->have += (uint64_t)got;
    if (c->have < end) continue;
    if (c->message == NULL && c->source < 0) {
      const acme_hello* hello = &c->head.hello;
      if (hello->nonce != t->nonce || hello->rank < 0 || hello->rank >= t->world) return EPROTO;
      if (t->peer[hello->rank].connected) return EPROTO;
      c->source = hello->rank;
      t->peer[c->source].connected = 1;
      c->have = 0;
    } else if (c->message == NULL) {
      c->message = new_message(c->head.frame.bytes);
      if (c->message == NULL) return ENOMEM;
      c->message->frame = c->head.frame;
      c->message->source = c->source;
      c->have = 0;
    }
    if (c->message == NULL || c->have < c->message->frame.bytes) continue;
    (void)pthread_mutex_lock(&t->lock);
    deliver(t, c->message);
    (void)pthread_mutex_unlock(&t->lock);
    c->message = NULL;
    c->have = 0;
  }
  return 0;
}

static void close_all(acme_group* t) {
  for (int32_t i = 0; i < t->conns; ++i) (void)close(t->conn[i].fd), free(t->conn[i].message);
  t->conns = 0;
  for (int32_t i = 0; i < t->world; ++i) {
    if (t->peer[i].fd >= 0) (void)close(t->peer[i].fd);
    t->peer[i].fd = -1;
  }
  if (t->listener >= 0) (void)close(t->listener);
  t->listener = -1;
}

static void* progress(void* self) {
  acme_group* t = self;
  int starved = 0; /* no descriptor was left for accept */
  for (;;) {
    int timeout = starved ? ACME_RETRY_MS : -1;
    (void)pthread_mutex_lock(&t->lock);
    const int stop = t->stop, aborted = t->aborted.status != BP_OK;
    for (int32_t i = 0; i < t->world; ++i) {
      t->peer[i].wanted = t->peer[i].writing != NULL || !TAILQ_EMPTY(&t->peer[i].queue);
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (stop) return NULL;
    if (aborted) close_all(t); /* informs the peers */
    struct pollfd *fds = t->fds, *in = fds + 2, *out = in + t->conns;
    fds[0] = (struct pollfd){t->wake, POLLIN, 0};
    fds[1] = (struct pollfd){starved || t->conns == 2 * t->world ? -1 : t->listener, POLLIN, 0};
    for (int32_t i = 0; i < t->conns; ++i) in[i] = (struct pollfd){t->conn[i].fd, POLLIN, 0};
    for (int32_t i = 0; i < t->world; ++i) {
      acme_peer* p = &t->peer[i];
      if (!aborted && !p->opened) open_to(t, i);
      if (!aborted && !p->opened) timeout = ACME_RETRY_MS;
      if (!aborted && p->fd < 0 && i != t->rank && p->opened && !p->connected && p->in.status == BP_OK) timeout = 0;
      out[i] = (struct pollfd){p->fd, p->wanted ? POLLOUT : 0, 0};
    }
    if (poll(fds, (nfds_t)(2 + t->conns + t->world), timeout) < 0) continue; /* EINTR, ENOMEM */
    eventfd_t count;
    if (fds[0].revents != 0) (void)eventfd_read(t->wake, &count);
    if (aborted) continue;
    const int32_t polled = t->conns;
    starved = 0;
    while (fds[1].revents != 0 && t->conns < 2 * t->world) {
      const int fd = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) starved = is_scarce(errno);
      if (fd < 0) break;
      t->conn[t->conns++] = (acme_conn){.fd = fd, .source = -1};
    }
    for (int32_t i = t->conns - 1; i >= 0; --i) { /* downwards: the last one replaces a closed one */
      acme_conn* c = &t->conn[i];
      const int code = i >= polled || in[i].revents != 0 ? read_from(t, c) : 0;
      if (code == 0) continue;
      if (c->source >= 0)
        lose(t, c->source, 1, code == ENOMEM ? BP_RESOURCE : BP_PEER_LOST, code, "no more messages from");
      (void)close(c->fd), free(c->message);
      *c = t->conn[--t->conns];
    }
    for (int32_t i = 0; i < t->world; ++i) {
      const acme_peer* p = &t->peer[i];
      if ((out[i].revents & (POLLHUP | POLLERR)) != 0) {
        lose(t, i, 0, BP_PEER_LOST, EPIPE, "lost the connection to");
      } else if (out[i].revents != 0) {
        write_to(t, i);
      }
      /* Messages that the peer sent before it left were accepted above; otherwise none will arrive. */
      if (p->opened && p->fd < 0 && i != t->rank && !p->connected && p->in.status == BP_OK) {
        lose(t, i, 1, BP_PEER_LOST, EPIPE, "no messages will arrive from");
      }
    }
  }
}

#endif
