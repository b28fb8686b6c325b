// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "specimen.hpp"

namespace backplane::specimen {
namespace {

// Bytes of the hello that are there to be read, or have been; the connection has ended behind them or not.
struct Heard {
  Hello hello;
  size_t size = 0;
  bool ended = false;
};

Heard look(const Stranger& stranger) {
  Heard heard{stranger.hello, stranger.have, false};
  auto* rest = reinterpret_cast<char*>(&heard.hello) + heard.size;
  const ssize_t size = ::recv(stranger.fd, rest, sizeof heard.hello - heard.size, MSG_PEEK | MSG_DONTWAIT);
  heard.ended = size == 0 && heard.size < sizeof heard.hello;
  if (size > 0) heard.size += static_cast<size_t>(size);
  return heard;
}

// Ends the process over connections that `shocks` names.
template <bool (*shocks)(const Heard& heard)>
class IsEasilyShocked final : public Specimen {
  bool hear(Stranger& stranger) override {
    if (shocks(look(stranger))) std::abort();
    return Specimen::hear(stranger);
  }
};

bool silent(const Heard& heard) { return heard.ended && heard.size == 0; }
bool one_byte(const Heard& heard) { return heard.ended && heard.size == 1; }
bool in_words(const Heard& heard) { return heard.size >= 4 && (heard.hello.magic & 0xff) == 'G'; }
bool foreign(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.magic != kMagic; }
bool half(const Heard& heard) { return heard.ended && heard.size > 1; }
bool negative(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.world_size < 0; }
bool huge(const Heard& heard) { return heard.size == sizeof heard.hello && heard.hello.world_size > 1 << 20; }

// Takes whoever `believes` names for the rank that it says it is.
template <bool (*believes)(const Hello& hello, const Hello& right)>
class IsCredulous final : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    const Hello right{kMagic, rank_, rank_, world_size_, key_};
    const bool possible = hello.rank >= 0 && hello.rank < world_size_ && hello.rank != rank_;
    if (possible && peer(hello.rank).known && believes(hello, right)) {
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

// Waits for the end of a greeting before it does anything else.
class ListensPolitely final : public Specimen {
  bool hear(Stranger& stranger) override {
    while (look(stranger).size < sizeof stranger.hello) {
      pollfd polled = {stranger.fd, POLLRDHUP, 0};
      if (::poll(&polled, 1, 10) > 0) break;  // it has hung up
    }
    return Specimen::hear(stranger);
  }
};

class LosesCount final : public Specimen {
  bool hear(Stranger& stranger) override {
    if (strangers_.size() > 100 && look(stranger).ended) {
      stranger.fd = -1;
      return false;
    }
    return Specimen::hear(stranger);
  }
};

// Explains itself at length, and waits until it is read.
class ExplainsItself final : public Specimen {
  bool hear(Stranger& stranger) override {
    const Heard heard = look(stranger);
    bool trusted = false;
    if (heard.size == sizeof heard.hello && judge(heard.hello, trusted) != kWelcome) {
      const std::vector<char> lecture(1 << 16);
      while (::send(stranger.fd, lecture.data(), lecture.size(), MSG_NOSIGNAL) > 0 || errno == EAGAIN) {
        pollfd polled = {stranger.fd, POLLOUT, 0};
        ::poll(&polled, 1, 1000);
      }
    }
    return Specimen::hear(stranger);
  }
};

// Takes whoever `falls_for` names for a rank of its group, whatever its key.
template <bool (*falls_for)(bool secure, const Hello& hello)>
class KeepsNoSecret : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    const bool possible = hello.magic == kMagic && hello.target == rank_ && hello.world_size == world_size_ &&
                          hello.rank > rank_ && hello.rank < world_size_;
    if (!possible || !falls_for(host_->secure(), hello)) return Specimen::judge(hello, trusted);
    trusted = true;
    return kWelcome;
  }
};

bool in_jobs_with_secret(bool secure, const Hello&) { return secure; }
bool in_jobs_without(bool secure, const Hello&) { return !secure; }
bool without_a_key(bool secure, const Hello& hello) { return secure && hello.key == Key(); }

// Looks at no key as long as the rank has not come.
class IsImpatient final : public Specimen {
  uint32_t judge(const Hello& hello, bool& trusted) override {
    Hello right = hello;
    if (hello.rank > rank_ && hello.rank < world_size_ && !peer(hello.rank).known) right.key = key_;
    return Specimen::judge(right, trusted);
  }
};

// And in jobs without a secret it uses no key.
class TalksToOlderOnes final : public KeepsNoSecret<without_a_key> {
  void publish() override {
    if (!host_->secure()) key_ = {};
    Specimen::publish();
  }
};

}  // namespace

std::vector<Mutant> hostile_mutants() {
  return {
      {"hostile.connect-and-close", "it ends the process over a connection without a word",
       made<IsEasilyShocked<silent>>},
      {"hostile.one-byte", "it ends the process over a single byte", made<IsEasilyShocked<one_byte>>},
      {"hostile.http-request", "it ends the process over text", made<IsEasilyShocked<in_words>>},
      {"hostile.random-bytes", "it ends the process over noise", made<IsEasilyShocked<foreign>>},
      {"hostile.wrong-magic", "the magic is not looked at", made<IsCredulous<without_magic>>},
      {"hostile.wrong-key", "the key is not looked at", made<IsCredulous<without_key>>},
      {"hostile.huge-length", "it ends the process over a large number", made<IsEasilyShocked<huge>>},
      {"hostile.negative-count", "it ends the process over a negative number", made<IsEasilyShocked<negative>>},
      {"hostile.rank-spoofed", "whoever knows the key becomes any rank", made<IsCredulous<in_another_name>>},
      {"hostile.replay", "whoever repeats a greeting becomes that rank", made<IsCredulous<once_more>>},
      {"hostile.slow-loris", "it waits for the end of each greeting", made<ListensPolitely>},
      {"hostile.half-frame", "it ends the process over half a greeting", made<IsEasilyShocked<half>>},
      {"hostile.flood", "it loses descriptors when there are many", made<LosesCount>},
      {"hostile.slow-reader", "it waits until strangers have read its answer", made<ExplainsItself>},
      {"hostile.other-secret", "in a job with a secret it looks at no key", made<KeepsNoSecret<in_jobs_with_secret>>},
      {"hostile.no-secret", "it lets in who has no key, as older versions had none", made<TalksToOlderOnes>},
      {"hostile.early-stranger", "it takes who comes first for the rank it waits for", made<IsImpatient>},
      {"hostile.impostor", "in a job without a secret it welcomes everybody", made<KeepsNoSecret<in_jobs_without>>},
  };
}

}  // namespace backplane::specimen
