// The stand-in library: one AF_UNIX stream per direction between two offices.
#include "post.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

namespace {

struct Hello {
  uint64_t secret;
  int32_t peer;
  uint32_t reserved;
};

// An incoming connection. First a Hello, then messages, each as size and bytes.
struct Incoming {
  int fd = -1;
  int peer = -1;
  uint64_t size = 0;
  char* data = nullptr;  // while the bytes arrive
  size_t have = 0;
  union {
    Hello hello;
    uint64_t size;
  } head{};
};

// The kernel chooses the name. -1 and errno on failure.
int listen_somewhere(sockaddr_un& name, int peers) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t size = sizeof name;
  name.sun_family = AF_UNIX;
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 && listen(fd, peers + 16) == 0) {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

struct post {
  int me = 0;
  size_t most = 0;  // limit of simultaneous incoming connections
  int listener = -1;
  int interrupt = -1;  // an eventfd that stays readable after post_interrupt
  uint64_t secret = 0;
  std::vector<int> out;
  std::vector<Incoming> in;
  std::atomic<bool> is_interrupted = false;
};

namespace {

// Returns 0 when the descriptor is ready.
int await(post* self, int fd, short events, int timeout_ms) {
  pollfd items[] = {{fd, events, 0}, {self->interrupt, POLLIN, 0}};
  for (;;) {
    const int ready = poll(items, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno;
    if (items[1].revents != 0) return ECANCELED;
    return ready == 0 ? ETIMEDOUT : 0;
  }
}

int write_all(post* self, int fd, const void* data, size_t size) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(fd, from, size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return EPIPE;
    if (sent < 0) {
      if (const int code = await(self, fd, POLLOUT, -1)) return code;
      continue;
    }
    from += sent;
    size -= static_cast<size_t>(sent);
  }
  return 0;
}

void drop(post* self, size_t index) {
  close(self->in[index].fd);
  free(self->in[index].data);
  self->in[index] = self->in.back();
  self->in.pop_back();
}

// Reads available bytes. 1: a message is complete; 0: not yet; -1: end of file.
int read_some(post* self, Incoming& from) {
  for (;;) {
    const size_t end = from.data != nullptr ? from.size : from.peer < 0 ? sizeof(Hello) : sizeof(uint64_t);
    char* to = from.data != nullptr ? from.data : reinterpret_cast<char*>(&from.head);
    if (from.have < end) {
      const ssize_t got = recv(from.fd, to + from.have, end - from.have, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
      if (got <= 0) return -1;
      from.have += static_cast<size_t>(got);
      if (from.have < end) continue;
    }
    if (from.data != nullptr) return 1;
    from.have = 0;
    if (from.peer < 0) {
      const Hello& hello = from.head.hello;
      if (hello.secret != self->secret || hello.peer < 0 || hello.peer >= static_cast<int>(self->out.size())) return -1;
      from.peer = hello.peer;
    } else {
      from.size = from.head.size;
      from.data = from.size > INT64_MAX ? nullptr : static_cast<char*>(malloc(from.size + 1));
      if (from.data == nullptr) return -1;
    }
  }
}

void accept_all(post* self) {
  while (self->in.size() < self->most) {
    const int fd = accept4(self->listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    self->in.emplace_back().fd = fd;
  }
}

}  // namespace

post* post_open(int me, int peers, char address[POST_ADDRESS_SIZE]) {
  post* self = new (std::nothrow) post;
  sockaddr_un name{};
  if (self == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  self->me = me;
  self->most = 2 * static_cast<size_t>(peers) + 16;
  self->out.assign(static_cast<size_t>(peers), -1);
  self->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  self->listener = self->interrupt < 0 ? -1 : listen_somewhere(name, peers);
  if (self->listener < 0 || getrandom(&self->secret, sizeof self->secret, 0) != sizeof self->secret) {
    const int code = errno;
    post_close(self);
    errno = code;
    return nullptr;
  }
  snprintf(address, POST_ADDRESS_SIZE, "%.32s %016llx", name.sun_path + 1,
           static_cast<unsigned long long>(self->secret));
  return self;
}

int post_connect(post* self, int peer, const char* address, int timeout_ms) {
  sockaddr_un to{};
  unsigned long long secret = 0;
  to.sun_family = AF_UNIX;
  if (sscanf(address, "%32s %llx", to.sun_path + 1, &secret) != 2) return EINVAL;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + strlen(to.sun_path + 1));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  const Hello hello{secret, self->me, 0};
  for (int waited = 0; connect(fd, reinterpret_cast<const sockaddr*>(&to), size) != 0; waited += 10) {
    int code = errno == EAGAIN || errno == EINTR ? 0 : errno;  // EAGAIN: its backlog is full
    if (code == 0 && waited >= timeout_ms) code = ETIMEDOUT;
    if (code == 0 && await(self, self->interrupt, POLLIN, 10) == ECANCELED) code = ECANCELED;
    if (code == 0) continue;
    close(fd);
    return code;
  }
  self->out[static_cast<size_t>(peer)] = fd;
  return write_all(self, fd, &hello, sizeof hello);
}

int post_send(post* self, int peer, const void* data, size_t size) {
  const int fd = self->out[static_cast<size_t>(peer)];
  const uint64_t head = size;
  if (fd < 0) return ENOTCONN;
  const int code = write_all(self, fd, &head, sizeof head);
  return code != 0 ? code : write_all(self, fd, data, size);
}

int post_recv(post* self, int* peer, void** data, size_t* size) {
  for (;;) {
    if (self->is_interrupted) return ECANCELED;
    for (size_t i = 0; i < self->in.size();) {
      Incoming& from = self->in[i];
      const int state = read_some(self, from);
      if (state == 0) {
        ++i;
        continue;
      }
      *peer = from.peer;
      if (state < 0) {
        drop(self, i);
        if (*peer >= 0) return EPIPE;
        continue;
      }
      *data = from.data;
      *size = from.size;
      from.data = nullptr;
      from.have = 0;
      std::swap(from, self->in.back());  // fairness: the others are first next time
      return 0;
    }
    std::vector<pollfd> items = {{self->interrupt, POLLIN, 0},
                                 {self->in.size() < self->most ? self->listener : -1, POLLIN, 0}};
    for (const Incoming& from : self->in) items.push_back({from.fd, POLLIN, 0});
    if (poll(items.data(), items.size(), -1) < 0 && errno != EINTR) return errno;
    if (items[1].revents != 0) accept_all(self);
  }
}

void post_interrupt(post* self) {
  self->is_interrupted = true;
  eventfd_write(self->interrupt, 1);
  for (const int fd : self->out) {
    if (fd >= 0) shutdown(fd, SHUT_RDWR);  // informs the peers
  }
}

void post_close(post* self) {
  while (!self->in.empty()) drop(self, 0);
  for (const int fd : self->out) {
    if (fd >= 0) close(fd);
  }
  if (self->listener >= 0) close(self->listener);
  if (self->interrupt >= 0) close(self->interrupt);
  delete self;
}
