// SPDX-License-Identifier: Apache-2.0
#include "resources.hpp"

#include <cstdlib>
#include <latch>
#include <list>
#include <string>
#include <system_error>
#include <thread>

#include "backplane/base/event_fd.hpp"
#include "backplane/sdk/sdk.hpp"

namespace backplane::zmq {
namespace {

// One mailbox of the context; a mailbox and an epoll of the reaper and of each I/O thread; a mailbox of each socket:
// six (two are monitors') and the ZAP handler's; two listening descriptors, the group's eventfd and the limiter's two;
// seven for connecting.
constexpr int kDescriptors = 1 + 2 + 7 + 5 + 7;
constexpr int kDescriptorsPerThread = 2;
constexpr int kThreads = 2;  // the reaper and the group's own

void require_descriptors(int count) {
  const std::string advice = "zmq: a group needs " + std::to_string(count) +
                             " descriptors to begin with; raise this process's limit (ulimit -n)";
  try {
    std::list<base::EventFd> tried;
    while (count-- > 0) tried.emplace_back();
  } catch (const std::system_error& e) {
    throw sdk::Failure(BP_RESOURCE, advice, -1, e.code().value());
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

// Freeing a block of this size makes glibc take blocks up to it from the heap, and keep twice as much free memory.
constexpr size_t kKept = size_t{4} << 20;

}  // namespace

void keep_memory_for_messages() {
  void* volatile block = std::malloc(kKept);  // volatile keeps the compiler from removing both calls
  std::free(block);
}

void require_resources(int io_threads) {
  require_descriptors(kDescriptors + kDescriptorsPerThread * io_threads);
  const sdk::SignalsBlocked blocked;
  require_threads(kThreads + io_threads);
}

}  // namespace backplane::zmq
