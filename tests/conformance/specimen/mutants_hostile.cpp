// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

// The bytes of the hello received so far, and whether the connection ended after them.
struct Heard {
  Hello hello;
  size_t size = 0;
  bool ended = false;
};

Heard look(const PendingConnection& pending) {
  Heard heard{pending.hello, pending.have, false};
  auto* rest = reinterpret_cast<char*>(&heard.hello) + heard.size;
  const ssize_t size = ::recv(pending.fd, rest, sizeof heard.hello - heard.size, MSG_PEEK | MSG_DONTWAIT);
  heard.ended = size == 0 && heard.size < sizeof heard.hello;
  if (size > 0) heard.size += static_cast<size_t>(size);
  return heard;
}

// Aborts the process on connections that `crashes_on` selects.
template <bool (*crashes_on)(const Heard& heard)>
class CrashesOn final : public Specimen {
  bool hear(PendingConnection& pending) override {
    if (crashes_on(look(pending))) std::abort();
    return Specimen::hear(pending);
  }
};

bool silent(const Heard& heard) { return heard.ended && heard.size == 0; }
bool one_byte(const Heard& heard) { return heard.ended && heard.size == 1; }
bool in_words(const Heard& heard) { return heard.size >= 4 && (heard.hello.magic & 0xff) == 'G'; }
bool foreign(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.magic != kMagic; }
bool half(const Heard& heard) { return heard.ended && heard.size > 1; }
bool negative(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.world_size < 0; }
bool huge(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.world_size > 1 << 20; }

// Accepts a hello that `trusts` selects as the rank that it claims.
template <bool (*trusts)(const Hello& hello, const Hello& right)>
class Accepts final : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    const Hello right{kMagic, rank_, rank_, world_size_, key_};
    const bool possible = hello.rank >= 0 && hello.rank < world_size_ && hello.rank != rank_;
    if (possible && peer(hello.rank).known && trusts(hello, right)) {
      trusted = true;
      return kWelcome;
    }
    return Specimen::judge(hello, trusted);
  }
};

bool without_magic(const Hello& hello, const Hello& right) {
  return hello.magic != right.magic && hello.key == right.key && hello.target == right.target;
}
bool without_key(const Hello& hello, const Hello& right) {
  return hello.magic == right.magic && hello.key != right.key && hello.target == right.target;
}
bool in_another_name(const Hello& hello, const Hello& right) {
  return hello.magic == right.magic && hello.key == right.key && hello.target == right.target &&
         hello.rank < right.rank;
}
bool once_more(const Hello& hello, const Hello& right) {
  return hello.magic == right.magic && hello.key == right.key && hello.target == right.target &&
         hello.rank > right.rank;
}

// Blocks until a hello is complete.
class WaitsForHello final : public Specimen {
  bool hear(PendingConnection& pending) override {
    while (look(pending).size < sizeof pending.hello) {
      pollfd polled = {pending.fd, POLLRDHUP, 0};
      if (::poll(&polled, 1, 10) > 0) break;  // closed by the peer
    }
    return Specimen::hear(pending);
  }
};

class LeaksUnderFlood final : public Specimen {
  bool hear(PendingConnection& pending) override {
    if (pending_.size() > 100 && look(pending).ended) {
      pending.fd = -1;
      return false;
    }
    return Specimen::hear(pending);
  }
};

// Keeps connections without a hello, in any number and for any time.
class KeepsIdleConnections final : public Specimen {
  void accept_connections() override {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        pending_.push_back({fd, {}, 0, TimePoint::max()});
        continue;
      }
      if (errno != EAGAIN) accept_again_ = Clock::now() + std::chrono::milliseconds(50);
      return;
    }
  }
};

// Sends a long refusal and blocks until it is read.
class WaitsForReader final : public Specimen {
  bool hear(PendingConnection& pending) override {
    const Heard heard = look(pending);
    bool trusted = false;
    if (heard.size == sizeof heard.hello && judge(heard.hello, trusted) != kWelcome) {
      const std::vector<char> lecture(1 << 16);
      while (::send(pending.fd, lecture.data(), lecture.size(), MSG_NOSIGNAL) > 0 || errno == EAGAIN) {
        pollfd polled = {pending.fd, POLLOUT, 0};
        ::poll(&polled, 1, 1000);
      }
    }
    return Specimen::hear(pending);
  }
};

// Accepts a hello that `skips_key` selects with any key.
template <bool (*skips_key)(bool secure, const Hello& hello)>
class IgnoresKey : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    const bool possible = hello.magic == kMagic && hello.target == rank_ && hello.world_size == world_size_ &&
                          hello.rank > rank_ && hello.rank < world_size_;
    if (!possible || !skips_key(host_->secure(), hello)) return Specimen::judge(hello, trusted);
    trusted = true;
    return kWelcome;
  }
};

bool in_jobs_with_secret(bool secure, const Hello&) { return secure; }
bool in_jobs_without(bool secure, const Hello&) { return !secure; }
bool without_a_key(bool secure, const Hello& hello) { return secure && hello.key == Key(); }

// Ignores the key until the rank is connected.
class AcceptsFirstConnection final : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    Hello right = hello;
    if (hello.rank > rank_ && hello.rank < world_size_ && !peer(hello.rank).known) right.key = key_;
    return Specimen::judge(right, trusted);
  }
};

// Publishes an empty key in jobs without a secret.
class AcceptsMissingKey final : public IgnoresKey<without_a_key> {
  void publish() override {
    if (!host_->secure()) key_ = {};
    Specimen::publish();
  }
};

}  // namespace

std::vector<Mutant> hostile_mutants() {
  return {
      {"hostile.connect-and-close", "an empty connection ends the process", made<CrashesOn<silent>>},
      {"hostile.one-byte", "a single byte ends the process", made<CrashesOn<one_byte>>},
      {"hostile.http-request", "text ends the process", made<CrashesOn<in_words>>},
      {"hostile.random-bytes", "random bytes end the process", made<CrashesOn<foreign>>},
      {"hostile.wrong-magic", "the magic is not checked", made<Accepts<without_magic>>},
      {"hostile.wrong-key", "the key is not checked", made<Accepts<without_key>>},
      {"hostile.huge-length", "a large number ends the process", made<CrashesOn<huge>>},
      {"hostile.negative-count", "a negative number ends the process", made<CrashesOn<negative>>},
      {"hostile.rank-spoofed", "a hello with the right key may claim any rank", made<Accepts<in_another_name>>},
      {"hostile.replay", "a replayed hello is accepted", made<Accepts<once_more>>},
      {"hostile.slow-loris", "an incomplete hello blocks the group", made<WaitsForHello>},
      {"hostile.half-frame", "half a hello ends the process", made<CrashesOn<half>>},
      {"hostile.flood", "descriptors leak under many connections", made<LeaksUnderFlood>},
      {"hostile.slow-reader", "the group blocks until a refusal is read", made<WaitsForReader>},
      {"hostile.late-rank", "idle connections are kept in any number", made<KeepsIdleConnections>},
      {"hostile.other-secret", "the key is not checked in a job with a secret", made<IgnoresKey<in_jobs_with_secret>>},
      {"hostile.no-secret", "a hello without a key is accepted", made<AcceptsMissingKey>},
      {"hostile.early-outsider", "the first connection is accepted as the missing rank", made<AcceptsFirstConnection>},
      {"hostile.impostor", "the key is not checked in a job without a secret", made<IgnoresKey<in_jobs_without>>},
  };
}

}  // namespace backplane::specimen
