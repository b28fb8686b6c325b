// SPDX-License-Identifier: Apache-2.0
#include "resources.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <latch>
#include <list>
#include <string>
#include <system_error>
#include <thread>

#include "progress.hpp"

namespace backplane::zmq {
namespace {

// Of a context: a mailbox of its own; for the reaper and each I/O thread a mailbox and an epoll. Of each of the four
// sockets (one is the monitor's), and the one that lets peers in: a mailbox. Then two listening descriptors and the
// group's eventfd; and some for what is needed while peers are dialled.
constexpr int kDescriptors = 1 + 2 + 5 + 3 + 7;
constexpr int kDescriptorsPerThread = 2;
constexpr int kThreads = 2;  // the reaper and the group's own

void require_descriptors(int count) {
  const std::string advice = "zmq: a group needs " + std::to_string(count) +
                             " descriptors to begin with; raise this process's limit (ulimit -n)";
  try {
    std::list<EventFd> tried;
    while (count-- > 0) tried.emplace_back();
  } catch (const sdk::Failure& e) {
    throw sdk::Failure(BP_RESOURCE, advice, -1, e.native_code());
  }
}

void require_threads(int count) {
  std::latch all(count);
  std::list<std::thread> tried;
  int error = 0;
  for (int i = 0; i < count && error == 0; ++i) {
    try {
      tried.emplace_back([&all] { all.wait(); });
      all.count_down();
    } catch (const std::system_error& e) {
      error = e.code().value();
      all.count_down(count - i);
    }
  }
  for (std::thread& thread : tried) thread.join();
  if (error == 0) return;
  throw sdk::Failure(BP_RESOURCE,
                     "zmq: a group needs " + std::to_string(count) + " threads; raise this process's limit (ulimit -u)",
                     -1, error);
}

// From then on blocks up to this size come from the heap, and twice as much may lie idle at its end.
constexpr size_t kKept = size_t{4} << 20;

}  // namespace

void keep_memory_for_messages() {
  void* volatile block = std::malloc(kKept);  // volatile, so that the compiler leaves both calls where they are
  std::free(block);
}

void require_resources(int io_threads) {
  require_descriptors(kDescriptors + kDescriptorsPerThread * io_threads);
  const sdk::SignalsBlocked blocked;
  require_threads(kThreads + io_threads);
}

}  // namespace backplane::zmq
