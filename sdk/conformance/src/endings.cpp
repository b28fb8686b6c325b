// SPDX-License-Identifier: Apache-2.0
#include "endings.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

namespace backplane::conformance {

void die(const Member& member, int signal) {
  member.world().mark_failed();
  member.run().channel.send({Record::kDying, member.id(), {std::to_string(signal)}});
  ::signal(signal, SIG_DFL);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_UNBLOCK, &all, nullptr);
  ::kill(getpid(), signal);
  for (;;) pause();
}

void freeze(const Member& member, Nanoseconds time) {
  if (time < 0) member.world().mark_failed();
  const std::string over = fmt::format("freeze/{}/{}", member.id(), now());
  const int64_t milliseconds = time < 0 ? -1 : time / kMillisecond;
  member.run().channel.send({Record::kFreeze, member.id(), {std::to_string(milliseconds), over}});
  std::string word;
  const Nanoseconds limit = time < 0 ? -1 : time + member.hang_limit(20 * kSecond);
  member.world().get(over, word, limit, [] { return false; });
}

void depart(const Member& member) {
  member.world().mark_failed();
  member.run().channel.send({Record::kDone, member.id(), {}});
  _exit(0);
}

}  // namespace backplane::conformance
